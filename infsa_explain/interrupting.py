"""Ctrl-C: ends a command within about a second, and says what is kept and how to go on."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "ends_when_interrupted", "says_when_interrupted"]

#: Exit code of a command that was interrupted, as shells have it.
INTERRUPTED = 130
#: What commands have to say when interrupted, the innermost last.
_LAST_WORDS: list[Callable[[], None]] = []


@contextmanager
def says_when_interrupted(say: Callable[[], None]) -> Iterator[None]:
    """Within it, an interrupt calls ``say`` before it goes on its way."""
    _LAST_WORDS.append(say)
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise
    finally:
        _LAST_WORDS.remove(say)


@contextmanager
def ends_when_interrupted(patience: float = 1.0) -> Iterator[None]:
    """Within it, Ctrl-C ends the process also where Python does not get to raise its exception.

    A single call of a library (a large system of equations, a convolution) may take minutes. After
    ``patience`` seconds of it the last words are said, and the process ends with code 130. What it
    was writing is safe: files are replaced whole, and rows count once they are committed.

    Elsewhere than in a main thread that Ctrl-C interrupts, nothing is changed.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or before is not signal.default_int_handler:
        yield
        return
    noticed = threading.Event()
    ear, mouth = socket.socketpair()  # Python's own handlers run between its steps; this at once
    mouth.setblocking(False)

    def notice(*interrupt: object) -> None:
        noticed.set()
        raise KeyboardInterrupt

    def watch() -> None:
        while number := ear.recv(1):
            if number[0] == signal.SIGINT and not noticed.wait(patience):
                for say in reversed(_LAST_WORDS):
                    say()
                cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hid it
                print(f"{cursor}interrupted", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            noticed.clear()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    told = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(told)
        mouth.close()
        watcher.join()
        ear.close()
