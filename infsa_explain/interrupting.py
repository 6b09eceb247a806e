"""Ctrl-C ends a command within about a second, with a message on what is kept."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "ends_when_interrupted", "says_when_interrupted"]

#: Exit code of an interrupted command, as in shells.
INTERRUPTED = 130
#: Functions that print a message on an interrupt, the innermost last.
_MESSAGES: list[Callable[[], None]] = []


@contextmanager
def says_when_interrupted(say: Callable[[], None]) -> Iterator[None]:
    """Call ``say`` when the block is interrupted; the KeyboardInterrupt is raised again."""
    _MESSAGES.append(say)
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise
    finally:
        _MESSAGES.remove(say)


@contextmanager
def ends_when_interrupted(patience: float = 1.0) -> Iterator[None]:
    """Make Ctrl-C end the process even during a long call into a library.

    Python raises KeyboardInterrupt only between its own instructions, and a single library call
    (a large linear system, a convolution) may take minutes. If the exception is not raised within
    ``patience`` seconds, a thread prints the messages and ends the process with code 130. No output
    file is damaged: files are replaced atomically, and readers ignore incomplete rows.

    Without effect outside the main thread, or if SIGINT has another handler than Python's.

    Args:
        patience: seconds to wait for KeyboardInterrupt.
    """
    handler_before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or handler_before is not signal.default_int_handler:
        yield
        return
    raised = threading.Event()
    # The C-level handler writes the signal's number to this socket at once.
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def handle(*_: object) -> None:
        raised.set()
        raise KeyboardInterrupt

    def watch() -> None:
        while number := receiver.recv(1):
            if number[0] == signal.SIGINT and not raised.wait(patience):
                for say in reversed(_MESSAGES):
                    say()
                show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # progress bars hide it
                print(f"{show_cursor}interrupted", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            raised.clear()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wakeup_before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler_before)
        signal.set_wakeup_fd(wakeup_before)
        sender.close()
        watcher.join()
        receiver.close()
