"""Long work outside the script thread: a worker, progress, partial results, and a way to stop it.

A worker never calls Streamlit; a fragment polls the job (`app.widgets.job_view`). Jobs belong
to one session; when the session goes, its jobs are cancelled.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from hydra_core.errors import Cancelled, HydraError

State = Literal["waiting", "running", "done", "failed", "cancelled"]
LOG = logging.getLogger("hydra_lab")
SLOTS = threading.BoundedSemaphore(2)  # jobs that run at a time, over all sessions


@dataclass(eq=False)
class Job:
    """One piece of long work, and what a page may know about it.

    Attributes:
        key: what it computes (a digest of its settings); a store runs a key once.
        group: of such jobs only the newest matters.
        fraction: 0 to 1.
        note: what it is doing, a few words.
        partial: results so far, in the order in which they came.
        error: a HydraError fit to be shown, when it failed.
        incident: an id that also stands in the server's log, when the fault was ours.
    """

    key: str
    title: str
    group: str = ""
    state: State = "waiting"
    fraction: float = 0.0
    note: str = ""
    result: Any = None
    partial: list[Any] = field(default_factory=list)
    error: HydraError | None = None
    incident: str = ""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    cancel: threading.Event = field(default_factory=threading.Event, repr=False)
    finished: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def active(self) -> bool:
        return self.state in ("waiting", "running")

    def progress(self, fraction: float, note: str = "") -> None:
        """Called by the work, as `progress` of hydra_core's functions. Stops cancelled work."""
        self.fraction = min(1.0, max(0.0, float(fraction)))
        self.note = note or self.note
        if self.cancel.is_set():
            raise Cancelled(self.title)

    def publish(self, item: Any) -> None:
        """Hand out a partial result."""
        self.partial.append(item)

    def stop(self) -> None:
        """Ask the work to stop; it does so at its next step."""
        self.cancel.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the work has ended (tests, scripts); whether it has."""
        return self.finished.wait(timeout)


def _run(job: Job, work: Callable[[Job], Any], queued: bool) -> None:
    try:
        with _slot(job) if queued else nullcontext():
            job.progress(0.0)
            job.state, job.started = "running", time.monotonic()
            job.result = work(job)
            job.fraction, job.state = 1.0, "done"
    except Cancelled:
        job.state = "cancelled"
    except HydraError as error:
        job.error, job.state = error, "failed"
    except Exception as error:
        job.incident = log_incident(error)
        job.error = HydraError("Something broke on our side", hint=f"The server's log has it as {job.incident}.")
        job.state = "failed"
    finally:
        job.seconds = time.monotonic() - job.started
        job.finished.set()


@contextmanager
def _slot(job: Job) -> Iterator[None]:
    while not SLOTS.acquire(timeout=0.2):
        if job.cancel.is_set():
            raise Cancelled(job.title)
    try:
        yield
    finally:
        SLOTS.release()


def log_incident(error: BaseException) -> str:
    """Write an unexpected error to the server's console under a short id; returns the id."""
    incident = uuid.uuid4().hex[:8]
    LOG.error("incident %s", incident, exc_info=error)
    return incident


class JobStore:
    """The jobs of one session.

    Args:
        keep: finished jobs to remember; older ones are forgotten.
    """

    def __init__(self, keep: int = 12) -> None:
        self.keep = keep
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()
        # the finalizer holds the dict, not the store: a store that nobody holds stops its jobs
        self._finalizer = weakref.finalize(self, _cancel_all, self._jobs)

    def run(
        self, key: str, work: Callable[[Job], Any], title: str = "The work", *, group: str = "", queued: bool = True
    ) -> Job:
        """Start `work(job)` in a worker, unless this key is known: done, under way, failed or cancelled.

        `forget` makes a key run anew.

        Args:
            key: what is computed; equal keys mean equal results.
            work: called with the job; hands `job.progress` and `job.cancel` to hydra_core.
                It must not touch Streamlit.
            title: for the progress bar.
            group: work of the group that is still under way under other keys is stopped and forgotten: its
                question is no longer asked.
            queued: False for work that must not wait behind long computations: a page cannot do without it.
        """
        with self._lock:
            outdated = [j for k, j in self._jobs.items() if group and j.group == group and j.active and k != key]
            for job in outdated:
                job.stop()
                del self._jobs[job.key]
            old = self._jobs.get(key)
            if old is not None:
                return old
            job = self._jobs[key] = Job(key, title, group)
            self._jobs.move_to_end(key)
            ended = [k for k, j in self._jobs.items() if not j.active]
            for k in ended[: max(0, len(ended) - self.keep)]:
                del self._jobs[k]
        threading.Thread(target=_run, args=(job, work, queued), name=f"job-{title[:24]}", daemon=True).start()
        return job

    def get(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def forget(self, key: str) -> None:
        """Stop a job and drop it, so that it can run anew."""
        with self._lock:
            job = self._jobs.pop(key, None)
        if job is not None:
            job.stop()

    def active(self) -> list[Job]:
        return [job for job in list(self._jobs.values()) if job.active]

    def close(self) -> None:
        """Stop all jobs."""
        self._finalizer()


def _cancel_all(jobs: OrderedDict[str, Job]) -> None:
    for job in list(jobs.values()):
        job.stop()
