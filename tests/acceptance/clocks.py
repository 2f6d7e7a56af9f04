"""A clock that runs ahead or behind: the shim of a preloaded library, for a server or a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double offset(void) {
    const char *path = getenv("CLK_FILE");
    char text[64] = {0};
    int file;
    if (!path || (file = open(path, O_RDONLY)) < 0) return 0;
    long size = read(file, text, 63);
    close(file);
    return size > 0 ? strtod(text, 0) : 0;
}

static void shift(struct timespec *t) {
    double by = offset();
    long seconds = (long)by, nanoseconds = (long)((by - seconds) * 1e9);
    t->tv_sec += seconds;
    t->tv_nsec += nanoseconds;
    if (t->tv_nsec >= 1000000000) { t->tv_nsec -= 1000000000; t->tv_sec++; }
    if (t->tv_nsec < 0) { t->tv_nsec += 1000000000; t->tv_sec--; }
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, clock, t);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(t);
    return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    struct timespec t;
    int result = syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    if (!result) { shift(&t); value->tv_sec = t.tv_sec; value->tv_usec = t.tv_nsec / 1000; }
    return result;
}

time_t time(time_t *out) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    shift(&t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


def build_shim(folder: Path) -> Path:
    """Compile the library."""
    compiler = shutil.which("cc")
    if compiler is None:
        reason = "no C compiler for the clock shim: install gcc"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Clock:
    """The time of day of whatever is started with its environment."""

    def __init__(self, shim: Path, folder: Path, name: str, offset: float = 0.0) -> None:
        self._file = folder / f"{name}.clock"
        self.environment = {"LD_PRELOAD": str(shim), "CLK_FILE": str(self._file)}
        self.offset = 0.0
        self.set(offset)

    def set(self, offset: float) -> None:
        """So many seconds ahead of this machine, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:.3f}")
        new.rename(self._file)
        self.offset = offset

    @contextmanager
    def applied(self) -> Iterator[None]:
        """What is started inside has this clock."""
        with patch.dict(os.environ, self.environment):
            yield
