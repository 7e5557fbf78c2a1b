"""On PYTHONPATH this refuses every connection that leaves the machine and writes it into $MEDIR_TEST_CONNECTIONS."""

import os, socket

_LOCAL = ('127.0.0.1', '::1', 'localhost', '', None, '0.0.0.0')


def _refuse(address):
    with open(os.environ['MEDIR_TEST_CONNECTIONS'], 'a') as log:
        log.write(f'{address}\n')
    raise OSError(f'a connection to {address} was refused by the test')


def _guard(real):
    def connect(self, address):
        if isinstance(address, tuple) and address[0] not in _LOCAL:
            _refuse(address)
        return real(self, address)

    return connect


_lookup = socket.getaddrinfo


def _local_lookup(host, *arguments, **options):
    if host not in _LOCAL:
        _refuse(host)
    return _lookup(host, *arguments, **options)


if os.environ.get('MEDIR_TEST_CONNECTIONS'):
    socket.socket.connect = _guard(socket.socket.connect)
    socket.socket.connect_ex = _guard(socket.socket.connect_ex)
    socket.getaddrinfo = _local_lookup
