"""`python -m medir_nb.workbook` is the `medir` command."""

from . import main

if __name__ == '__main__':
    main()
