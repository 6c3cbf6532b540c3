"""A loop with OpenAI's client that sends the newest two messages: one model call for each line of standard input."""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
messages = []
for line in sys.stdin:
    messages.append({"role": "user", "content": line.strip()})
    answer = client.chat.completions.create(model="gpt-4o", messages=messages[-3:])
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    print("answered", flush=True)
