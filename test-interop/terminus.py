"""A native Terminus server on E2B: what upstream offers as `terminus_env`, written anew over the same packages, since
upstream's own isn't on PyPI. Serves on a free port and prints its address."""

import os
import socket
import uuid

import uvicorn
from e2b_code_interpreter import Sandbox
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State
from pydantic import ConfigDict


class TerminusState(State):
    model_config = ConfigDict(extra="allow")
    sandbox_id: str | None = None
    verify_commands: list[str] = []
    commands: list[dict] = []
    submitted_answer: str | None = None
    last_reward: float | None = None


def listed(value):
    return [] if value is None else [value] if isinstance(value, str) else list(value)


class Terminus(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.sandbox = None
        self.current = TerminusState(episode_id=str(uuid.uuid4()), step_count=0)
        tools = FastMCP("terminus")

        @tools.tool
        def terminal(command: str = "", final_answer: str = "") -> str:
            """Runs a shell command, or takes the final answer."""
            if self.sandbox is None:
                return "Error: environment not reset. Call reset() first."
            if final_answer:
                self.current.submitted_answer = final_answer
                passed = [self.run(verify)["success"] for verify in self.current.verify_commands]
                if not passed:
                    return f"Answer submitted: {final_answer}"
                self.current.last_reward = sum(passed) / len(passed)
                return f"Answer submitted: {final_answer}\nVerification: {sum(passed)}/{len(passed)} passed"
            if not command:
                return "Error: command or final_answer is required."
            result = self.run(command)
            self.current.commands.append(result)
            return result["output"]

        super().__init__(tools)

    def run(self, command):
        # As Jupyter runs it: Python, whose exit code is the command's.
        code = (
            "import subprocess, sys\n"
            f"done = subprocess.run(['/bin/sh', '-c', {command!r}], capture_output=True, text=True, timeout=120)\n"
            "print(done.stdout, end='')\n"
            "print(done.stderr, end='', file=sys.stderr)\n"
            "done.returncode and sys.exit(done.returncode)\n"
        )
        execution = self.sandbox.run_code(code)
        error = execution.error and f"{execution.error.name}: {execution.error.value}"
        parts = ["\n".join(execution.logs.stdout).strip(), "\n".join(execution.logs.stderr).strip()]
        parts.append(f"ERROR:\n{error}" if error else "")
        output = "\n".join(part for part in parts if part) or "(no output)"
        return {"command": command, "output": output, "error": error, "success": error is None}

    def reset(self, seed=None, episode_id=None, **given):
        self.close()
        self.current = TerminusState(episode_id=episode_id or str(uuid.uuid4()), step_count=0)
        self.sandbox = Sandbox.create(api_key=os.environ["E2B_API_KEY"])
        self.current.sandbox_id = self.sandbox.sandbox_id
        self.current.verify_commands = listed(given.get("verify"))
        results = [self.run(command) for command in listed(given.get("setup"))]
        ready = all(result["success"] for result in results)
        metadata = {
            "status": "ready" if ready else "error",
            "sandbox_id": self.current.sandbox_id,
            "message": "ready" if ready else "Setup command failed.",
            "setup_results": results,
            "verify_commands": self.current.verify_commands,
        }
        return Observation(done=not ready, reward=None, metadata=metadata)

    def _step_impl(self, action, timeout_s=None, **_):
        return Observation(done=False, reward=None, metadata={"error": "unknown action"})

    def finish(self, observation):
        if self.current.last_reward is not None:
            observation.done, observation.reward = True, self.current.last_reward
        return observation

    def step(self, action, timeout_s=None, **given):
        self.current.step_count += 1
        return self.finish(super().step(action, timeout_s=timeout_s, **given))

    async def step_async(self, action, timeout_s=None, **given):
        self.current.step_count += 1
        return self.finish(await super().step_async(action, timeout_s=timeout_s, **given))

    @property
    def state(self):
        return self.current

    def close(self):
        if self.sandbox is not None:
            self.sandbox.kill()
            self.sandbox = None


app = create_app(Terminus, CallToolAction, CallToolObservation, env_name="terminus", max_concurrent_envs=2)

listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
print(f"ws://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
