"""Answers over a link go on where they are read."""

import asyncio

import pytest
import uvloop

from contracts.errors import NotFound
from services.link.prompt_answer import PromptAnswer

LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_whoever_waits_goes_on_before_settle_returns_and_in_its_own_task(make_loop):
    async def main():
        loop, steps = asyncio.get_running_loop(), []
        answer = PromptAnswer(loop=loop)

        async def wait():
            task = asyncio.current_task()
            steps.append(await answer)
            assert asyncio.current_task() is task
            await asyncio.sleep(0)
            steps.append("later")

        def read():
            answer.settle(b"answer")
            steps.append("settled")

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        loop.call_soon(read)
        await waiting
        assert steps == [b"answer", "settled", "later"]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@LOOPS
def test_all_who_wait_are_told_and_who_comes_late_has_the_answer(make_loop):
    async def main():
        answer = PromptAnswer(loop=asyncio.get_running_loop())
        waiting = [asyncio.ensure_future(asyncio.shield(answer)) for _ in range(3)]
        asyncio.get_running_loop().call_soon(answer.settle, b"one")
        assert await asyncio.gather(*waiting) == [b"one"] * 3
        assert await answer == b"one"

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@LOOPS
def test_errors_and_cancellation_reach_whoever_waits(make_loop):
    async def main():
        loop = asyncio.get_running_loop()
        refused = PromptAnswer(loop=loop)
        loop.call_soon(refused.set_exception, NotFound("session_id", "gone"))
        with pytest.raises(NotFound):
            await refused
        given_up = PromptAnswer(loop=loop)
        waiting = asyncio.create_task(asyncio.wait_for(given_up, 30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert given_up.cancelled()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def test_what_is_taken_off_is_not_called():
    async def main():
        called = []
        answer = PromptAnswer(loop=asyncio.get_running_loop())
        answer.add_done_callback(called.append)
        assert answer.remove_done_callback(called.append) == 1
        answer.settle(b"")
        await asyncio.sleep(0)
        assert called == []

    asyncio.run(main())
