// Consumes a topic over HTTP: node consumer.mjs. Needs Node 18 or later, and no package.
import { appendFile } from "node:fs/promises";

const { DELAYQ_URL, DELAYQ_TOKEN, TOPIC = "mail", JOURNAL } = process.env;
const name = `node:${process.pid}`;

async function call(path, body) {
  const answer = await fetch(DELAYQ_URL + path, {
    method: "POST",
    headers: { Authorization: `Bearer ${DELAYQ_TOKEN}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  // 409: the lease has ended, and another consumer has the message or has done it.
  if (!answer.ok && answer.status !== 409) throw new Error(`${path}: ${await answer.text()}`);
  return answer.json();
}

async function work(message) {
  // Here goes what your message is for. It may run twice, when its consumer dies before the ack.
  if (JOURNAL) await appendFile(JOURNAL, `${message.id} ${name} ${message.attempt} ${Date.now()}\n`);
}

async function handle(message) {
  const { lease, ttr } = message;
  const keeper = setInterval(() => call("/leases/extend", { lease }).catch(console.error), ttr * 333);
  try {
    await work(message);
    await call("/leases/ack", { lease });
  } catch (error) {
    await call("/leases/nack", { lease, error: String(error), error_class: error.name });
  } finally {
    clearInterval(keeper);
  }
}

for (;;) {
  try {
    const { messages } = await call("/consume", { topics: [TOPIC], count: 20, wait: 10 });
    await Promise.all(messages.map(handle));
  } catch (error) {
    console.error(String(error)); // the server is away, or starts anew
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}
