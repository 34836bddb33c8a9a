"""The server of the book: what a reader's odd request or sudden leave makes it say."""

import functools
import http.client
import socket
import struct
import threading
import time

import pytest

from residlab.compendium import build


@pytest.fixture
def port(tmp_path):
    """Serve a folder with one page that is too large for the buffers of a connection."""
    (tmp_path / "index.html").write_bytes(b" " * 50_000_000)
    server = build._Server(("127.0.0.1", 0), functools.partial(build._Handler, directory=str(tmp_path)))
    server.daemon_threads = False  # so that closing waits for the last word of each
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_with_a_zero_byte_is_a_wrong_one(port, capfd):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/%00")
    assert connection.getresponse().status == 400
    connection.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_reader_who_leaves_is_not_spoken_of(port, capfd):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as reader:
        reader.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
        reader.recv(10)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # leave with a reset
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("HEAD", "/index.html")
    assert connection.getresponse().status == 200
    connection.close()
    time.sleep(0.5)
    assert capfd.readouterr().err == ""


def test_what_goes_wrong_otherwise_is_told(capfd, tmp_path):
    with build._Server(("127.0.0.1", 0), build._Handler) as server:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert "ZeroDivisionError" in capfd.readouterr().err
