"""`python -m medir_nb.trainer FILE [k=v …]`, alone or under `torchrun`."""

from .launch import main

if __name__ == '__main__':
    main()
