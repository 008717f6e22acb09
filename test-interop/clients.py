"""Drives a server with upstream's own clients through whole episodes, and prints what came of it as JSON."""

import asyncio
import json
import sys

url, task_path, which = sys.argv[1:4]

task = None
if task_path:
    with open(task_path, encoding="utf-8") as file:
        task = json.load(file)

PROGRAM = "/home/user/work/report.py"
RUN = f"python3 {PROGRAM}"
REPAIR = (
    "sed -i 's/= int(row\\[\"amount\"\\])/= totals.get(row[\"region\"], 0) + int(row[\"amount\"])/' " + PROGRAM
)


def call(tool, **arguments):
    return {"type": "call_tool", "tool_name": tool, "arguments": arguments}


def generic():
    from openenv.core import GenericEnvClient

    rewards, cleanup, states = [], [], []
    client = GenericEnvClient(base_url=url)
    with client.sync() as env:
        for commands in ([RUN], [RUN, REPAIR, RUN]):
            ready = env.reset(task=task, prompt=[{"role": "user", "content": "ignored"}], seed=1, episode_id="mine")
            assert ready.done is False and ready.reward is None, ready
            for command in commands:
                pending = env.step(call("terminal", command=command))
                assert pending.done is False and pending.reward == 0, pending
                assert pending.observation["result"]["structured_content"]["result"], pending
            end = env.step(call("submit"))
            assert end.done is True, end
            rewards.append(end.reward)
            states.append(env.state())
            cleanup += states[-1]["cleanup"]
        try:
            env.reset(task=task, setup="rm -rf /")
            raise AssertionError("an unknown argument was taken")
        except RuntimeError as error:
            assert "VALIDATION_ERROR" in str(error), error
    return {"rewards": rewards, "cleanup": cleanup, "states": states}


async def tools():
    from openenv.core.mcp_client import MCPToolClient

    rewards, cleanup = [], []
    for commands in ([RUN], [RUN, REPAIR, RUN]):
        async with MCPToolClient(base_url=url) as env:
            await env.reset(task=task)
            names = [tool.name for tool in await env.list_tools()]
            assert names == ["terminal", "submit"], names
            for command in commands:
                text = await env.call_tool("terminal", command=command)
                assert isinstance(text, str) and text, text
            from openenv.core.env_server.mcp_types import CallToolAction

            end = await env.step(CallToolAction(tool_name="submit", arguments={}))
            assert end.done is True, end
            rewards.append(end.reward)
            metadata = getattr(end, "metadata", None) or end.observation.metadata or {}
            cleanup += metadata.get("cleanup", [])
    return {"rewards": rewards, "cleanup": cleanup}


async def terminus():
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.mcp_client import MCPToolClient

    rewards = []
    async with MCPToolClient(base_url=url) as env:
        for repair in (False, True):
            ready = await env.reset(setup=["mkdir -p work", "echo broken > work/file"], verify=["grep -q mended work/file"])
            assert ready.done is False, ready
            assert ready.observation.metadata["status"] == "ready", ready
            assert [tool.name for tool in await env.list_tools()] == ["terminal"]
            assert await env.call_tool("terminal", command="cat work/file") == "broken"
            if repair:
                text = await env.call_tool("terminal", command="echo mended > work/file; exit 3")
                assert text.startswith("ERROR:"), text
            await env.call_tool("terminal", command="echo 1 > logs/verifier/reward.txt")
            answer = CallToolAction(tool_name="terminal", arguments={"final_answer": "done"})
            end = await env.step(answer)
            assert end.done is True, end
            rewards.append(end.reward)
    return {"rewards": rewards}


print(json.dumps(generic() if which == "generic" else asyncio.run(terminus() if which == "terminus" else tools())))
