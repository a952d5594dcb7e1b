"""Clients that nobody here wrote stream a Generate: `buf curl` by reflection, and @grpc/grpc-js from the .proto files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.tiny_stack import TinyStack

ROOT = Path(__file__).resolve().parents[2]
NODE_PACKAGES = ("@grpc/grpc-js@1.14.0", "@grpc/proto-loader@0.8.0")
BODY = {"text": "The quick brown fox", "sampling": {"temperature": 0, "maxTokens": 12, "ignoreEos": True}}

SCRIPT = """
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const [endpoint, root, body] = process.argv.slice(2);
const definition = loader.loadSync("protos/draftproof/v1/generate.proto", {includeDirs: [root], longs: Number});
const {GenerateService} = grpc.loadPackageDefinition(definition).draftproof.v1;
const client = new GenerateService(endpoint, grpc.credentials.createInsecure());
const call = client.Generate(JSON.parse(body));
call.on("data", (message) => console.log(JSON.stringify(message)));
call.on("error", (error) => { console.error(error); process.exit(1); });
call.on("end", () => client.close());
"""


def check_stream(messages: list[dict[str, object]]) -> None:
    """Tokens in several messages, and a certificate at the end."""
    *published, last = messages
    tokens = [token for message in published for token in message["published"].get("tokenIds", [])]  # type: ignore[attr-defined]
    assert len(tokens) == 12
    assert len(published) > 1
    finished = last["finished"]
    assert finished["certificate"]["verifier"] == "greedy"  # type: ignore[index]


def test_buf_curl_by_reflection(stack: TinyStack, tmp_path: Path) -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        pytest.skip("buf is not installed (the dev extra brings it)")
    url = f"http://{stack.orchestrator.endpoint}/draftproof.v1.GenerateService/Generate"
    done = subprocess.run(
        [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", json.dumps(BODY), url],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    decoder, messages, rest = json.JSONDecoder(), [], done.stdout.strip()
    while rest:
        message, end = decoder.raw_decode(rest)
        messages.append(message)
        rest = rest[end:].strip()
    check_stream(messages)


def test_buf_curl_shows_the_typed_error(stack: TinyStack, tmp_path: Path) -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        pytest.skip("buf is not installed (the dev extra brings it)")
    url = f"http://{stack.orchestrator.endpoint}/draftproof.v1.GenerateService/Generate"
    done = subprocess.run(
        [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--data", '{"text": ""}', url],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode != 0
    assert "invalid_argument" in done.stderr
    assert "draftproof.v1.ErrorInfo" in done.stderr


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """grpc-js, installed once below .cache."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = ROOT / ".cache" / "node"
    if not (directory / "node_modules" / "@grpc" / "grpc-js").is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), *NODE_PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        if done.returncode != 0:
            pytest.skip(f"npm could not install grpc-js: {done.stderr[-300:]}")
    return directory / "node_modules"


def test_grpc_js(stack: TinyStack, node_modules: Path, tmp_path: Path) -> None:
    script = tmp_path / "client.js"
    script.write_text(SCRIPT)
    body = {**BODY, "prompt": "text"}
    done = subprocess.run(
        ["node", str(script), stack.orchestrator.endpoint, str(ROOT), json.dumps(body)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE_PATH": str(node_modules)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    check_stream([json.loads(line) for line in done.stdout.splitlines()])
