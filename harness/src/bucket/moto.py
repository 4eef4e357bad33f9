"""Serves the S3 of moto at one address, until standard input ends.

Arguments: the folder with moto and its libraries, the address, and the port. Moto keeps objects in memory, therefore a line `stop`
on standard input closes the port and all connections and keeps the process, and a line `start` opens the port again.
"""

import sys

sys.path.insert(0, sys.argv[1])

import io
import socket
import socketserver
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import ThreadedWSGIServer

HOST, PORT = sys.argv[2], int(sys.argv[3])

# Seconds between two checks whether the port is to be closed.
POLL_INTERVAL = 0.02

moto = DomainDispatcherApplication(create_backend_app)
# Moto checks conditions of a PUT and stores the object in two steps, and S3 in one.
changing = threading.Lock()


def application(environ, respond):
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        return moto(environ, respond)
    # Read before the lock is taken: a slow client must not delay the others.
    body = environ["wsgi.input"]
    is_chunked = environ.get("wsgi.input_terminated")
    environ["wsgi.input"] = io.BytesIO(body.read() if is_chunked else body.read(int(environ.get("CONTENT_LENGTH") or 0)))
    with changing:
        return moto(environ, respond)


class Handler(MotoRequestHandler):
    # Objects are read in small ranges: the head and the body of a response are separate packets.
    disable_nagle_algorithm = True

    def log(self, type, message, *values):
        # Requests are not logged, because their number has no limit. Errors are.
        if type != "info":
            super().log(type, message, *values)


class Server(ThreadedWSGIServer):
    def __init__(self):
        self.connections = set()
        super().__init__(HOST, PORT, application, Handler)

    def get_request(self):
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, connection):
        self.connections.discard(connection)
        super().shutdown_request(connection)

    def stop(self):
        self.shutdown()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # The client closed it.
        # Last: the harness waits until the port refuses connections.
        self.server_close()


def start():
    server = Server()
    # Not the function of Werkzeug, which closes the port before the connections.
    serve = socketserver.BaseServer.serve_forever
    threading.Thread(target=serve, args=(server, POLL_INTERVAL), daemon=True).start()
    return server


server = start()
for line in sys.stdin:
    if line == "stop\n":
        server.stop()
    elif line == "start\n":
        server = start()
