"""Long work: progress, cancel, errors, and sessions that do not touch each other."""

import gc
import logging
import threading
import time

import pytest

from app.jobs import JobStore
from hydra_core.errors import DataError


def stepping(job, gate=None):
    for i in range(1000):
        job.progress(i / 1000, f"step {i}")
        if i == 3:
            job.publish("three")
        if gate is None:
            time.sleep(0.002)
        else:
            gate.wait(5)
    return "end"


def test_result_progress_and_partial_results():
    def work(job):
        job.progress(0.5, "half")
        job.publish(1)
        job.publish(2)
        return 42

    job = JobStore().run("k", work, "Adding")
    assert job.wait(5)
    assert (job.state, job.result, job.fraction, job.partial, job.note) == ("done", 42, 1.0, [1, 2], "half")


def test_a_stopped_job_ends_at_its_next_step_and_keeps_its_partial_results():
    store = JobStore()
    job = store.run("k", stepping)
    while not job.partial:
        time.sleep(0.005)
    job.stop()
    assert job.wait(5)
    assert (job.state, job.result, job.partial) == ("cancelled", None, ["three"])
    assert store.run("k", lambda job: "again") is job  # stays stopped until it is forgotten
    store.forget("k")
    assert store.run("k", lambda job: "again").wait(5)
    assert store.get("k").result == "again"


def test_a_key_runs_once():
    store, calls, gate = JobStore(), [], threading.Event()

    def work(job):
        calls.append(1)
        gate.wait(5)

    jobs = [store.run("k", work) for _ in range(5)]
    gate.set()
    assert jobs[0].wait(5)
    assert store.run("k", work) is jobs[0]
    assert len(calls) == 1


def test_errors_of_the_user_are_shown_as_they_are():
    def work(job):
        raise DataError("One class only", hint="Add another")

    job = JobStore().run("k", work)
    assert job.wait(5)
    assert job.state == "failed"
    assert "Add another" in str(job.error)
    assert job.incident == ""


def test_errors_of_ours_have_an_id_in_the_log_and_no_traceback_in_the_text(caplog):
    with caplog.at_level(logging.ERROR, "hydra_lab"):
        job = JobStore().run("k", lambda job: 1 / 0)
        assert job.wait(5)
    assert job.state == "failed"
    assert job.incident in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "ZeroDivision" not in str(job.error)
    assert job.incident in str(job.error)


def test_two_sessions_do_not_see_each_other():
    one, two = JobStore(), JobStore()
    a = one.run("k", lambda job: "one")
    b = two.run("k", lambda job: "two")
    assert a.wait(5)
    assert b.wait(5)
    assert (one.get("k").result, two.get("k").result) == ("one", "two")
    gate = threading.Event()
    c = two.run("long", lambda job: stepping(job, gate))
    one.close()
    gate.set()
    assert c.wait(5)
    assert c.state == "done"  # closing one session left the other's work alone


def test_a_session_that_goes_stops_its_jobs():
    store = JobStore()
    job = store.run("k", stepping)
    del store
    gc.collect()
    assert job.wait(5)
    assert job.state == "cancelled"


def test_more_jobs_than_slots_all_end_and_a_waiting_one_can_be_stopped():
    store, gate = JobStore(), threading.Event()
    jobs = [store.run(f"k{i}", lambda job: stepping(job, gate)) for i in range(4)]
    deadline = time.monotonic() + 5
    while sum(job.state == "running" for job in jobs) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    waiting = [job for job in jobs if job.state == "waiting"]
    assert len(waiting) == 2
    waiting[0].stop()
    assert waiting[0].wait(5)
    assert waiting[0].state == "cancelled"
    gate.set()
    assert all(job.wait(10) for job in jobs)
    assert sorted(job.state for job in jobs) == ["cancelled", "done", "done", "done"]


def test_old_finished_jobs_are_forgotten():
    store = JobStore(keep=3)
    for i in range(10):
        assert store.run(f"k{i}", lambda job: None).wait(5)
    assert store.get("k0") is None
    assert store.get("k9") is not None


@pytest.mark.parametrize(("given", "kept"), [(-1.0, 0.0), (0.25, 0.25), (7, 1.0)])
def test_progress_stays_between_zero_and_one(given, kept):
    seen = []

    def work(job):
        job.progress(given)
        seen.append(job.fraction)

    assert JobStore().run("k", work).wait(5)
    assert seen == [kept]


def test_newer_work_of_a_group_ends_the_older_which_can_be_asked_for_again():
    store, gate = JobStore(), threading.Event()
    old = store.run("a", lambda job: stepping(job, gate), group="g")
    other = store.run("x", lambda job: stepping(job, gate))
    new = store.run("b", lambda job: 1, group="g")
    gate.set()
    assert old.wait(5)
    assert old.state == "cancelled"
    assert other.cancel.is_set() is False
    assert new.wait(5)
    again = store.run("a", lambda job: 2, group="g")
    assert again is not old
    assert again.wait(5)
    assert again.result == 2
    store.close()
