// BullMQ: worker and producer, with the arguments and the answer of produce.py.
import fs from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(process.env.DELAYQ_BENCH_PEER + "/package.json");
const { Queue, Worker } = require("bullmq");

const SLOT = 16;
const PADDING = "x".repeat(88);
const BATCH = 500;
const FAR_MS = 7_200_000;
const WAITING = 1_000_000;
const address = new URL(process.env.DELAYQ_BENCH_REDIS);
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null };
const now = () => performance.timeOrigin + performance.now();

function work() {
  // Node has no mmap: one pwrite of about 2 us, seen by those who have the file mapped.
  const journal = fs.openSync(process.env.DELAYQ_BENCH_JOURNAL, "r+");
  const slot = Buffer.alloc(SLOT);
  const counts = new Map();
  const body = async (job) => {
    const { index } = job.data;
    const count = (counts.get(index) ?? 0) + 1;
    counts.set(index, count);
    slot.writeDoubleLE(now() / 1000, 0);
    slot.writeUInt32LE(count, 8);
    fs.writeSync(journal, slot, 0, SLOT, SLOT * index);
  };
  const worker = new Worker("bench", body, { connection, concurrency: 50 });
  process.on("SIGTERM", async () => { await worker.close(true); process.exit(0); });
}

function job(index, due) {
  // Upwards, for BullMQ adds whole milliseconds to a clock that it rounds down.
  const delay = Math.max(0, Math.ceil(due - now()) + 1);
  return { name: "noop", data: { index, padding: PADDING }, opts: { delay, attempts: 5, removeOnComplete: true } };
}

async function oneByOne(queue, first, count, due) {
  for (let index = first; index < first + count; index += 1) {
    const { name, data, opts } = job(index, due);
    await queue.add(name, data, opts);
  }
}

async function inBulk(queue, first, count, due) {
  for (let at = 0; at < count; at += BATCH) {
    const size = Math.min(BATCH, count - at);
    await queue.addBulk(Array.from({ length: size }, (_, index) => job(first + at + index, due)));
  }
}

async function paced(queue, first, count, rate) {
  const dues = [];
  const begun = now();
  for (let index = 0; index < count; index += 1) {
    await sleep(Math.max(0, begun + (1000 * index) / rate - now()));
    const due = now() + 1000 + 9000 * Math.random();
    dues.push(due / 1000);
    await oneByOne(queue, first + index, 1, due);
  }
  return dues;
}

async function produce(what, count, first = 0, number = 0) {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const begun = now();
  let due = [];
  if (what === "burst") await inBulk(queue, first, count, number * 1000);
  else if (what === "paced") due = await paced(queue, first, count, number);
  else if (what === "enqueue") await oneByOne(queue, WAITING, count, begun + FAR_MS);
  else await inBulk(queue, WAITING, count, begun + FAR_MS);
  const ended = now();
  await queue.close();
  console.log(JSON.stringify({ per_second: (1000 * count) / (ended - begun), ended: ended / 1000, due }));
}

const [role, what, ...numbers] = process.argv.slice(2);
if (role === "worker") work();
else await produce(what, ...numbers.map(Number));
