"""A parent loop of your own, on any OpenAI-compatible server, that can have others do its work.

python examples/parent_loop.py http://127.0.0.1:8080/v1 MODEL "Have an agent count the files here."
"""

import json
import os
import sys

import anyio
import httpx

from gofer import GoferError, Host


async def main(base_url: str, model: str, task: str) -> str:
    headers = {"Authorization": f"Bearer {os.environ.get('GOFER_API_KEY', 'none')}"}
    messages = [{"role": "user", "content": task}]
    async with Host(config={"base_url": base_url, "model": model}) as host:
        tools = (await host.tools()).to_openai()
        async with httpx.AsyncClient(headers=headers, timeout=None) as http:
            while True:
                body = {"model": model, "messages": messages, "tools": tools}
                reply = await http.post(f"{base_url}/chat/completions", json=body)
                message = reply.raise_for_status().json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return message["content"]
                for call in message["tool_calls"]:
                    name, arguments = call["function"]["name"], call["function"]["arguments"]
                    try:
                        output = (await host.call_tool(name, json.loads(arguments))).output
                    except (GoferError, ValueError) as error:
                        output = str(error)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


if __name__ == "__main__":
    print(anyio.run(main, *sys.argv[1:]) if len(sys.argv) == 4 else __doc__)
