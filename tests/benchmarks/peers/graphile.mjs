// Graphile Worker: worker and producer, with the arguments and the answer of produce.py. Its queue is in PostgreSQL.
import fs from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(process.env.DELAYQ_BENCH_PEER + "/package.json");
const { run, makeWorkerUtils, Logger } = require("graphile-worker");

const SLOT = 16;
const PADDING = "x".repeat(88);
const BATCH = 500;
const FAR_MS = 7_200_000;
const WAITING = 1_000_000;
const connectionString = process.env.DELAYQ_BENCH_POSTGRES;
const logger = new Logger(() => () => {});
const now = () => performance.timeOrigin + performance.now();

async function work() {
  // Node has no mmap: one pwrite of about 2 us, seen by those who have the file mapped.
  const journal = fs.openSync(process.env.DELAYQ_BENCH_JOURNAL, "r+");
  const slot = Buffer.alloc(SLOT);
  const counts = new Map();
  const noop = async ({ index }) => {
    const count = (counts.get(index) ?? 0) + 1;
    counts.set(index, count);
    slot.writeDoubleLE(now() / 1000, 0);
    slot.writeUInt32LE(count, 8);
    fs.writeSync(journal, slot, 0, SLOT, SLOT * index);
  };
  const runner = await run({
    connectionString, logger, concurrency: 24, maxPoolSize: 24, pollInterval: 100, noHandleSignals: true,
    // Jobs are fetched and completed in batches: without that it does a quarter of the rate.
    preset: { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0 } }, taskList: { noop },
  });
  process.on("SIGTERM", async () => { await runner.stop(); process.exit(0); });
  await runner.promise;
}

// Upwards: a Date has whole milliseconds.
const job = (index, due) => ({ identifier: "noop", payload: { index, padding: PADDING }, runAt: new Date(Math.ceil(due)) });

async function oneByOne(utils, first, count, due) {
  for (let index = first; index < first + count; index += 1) {
    const { identifier, payload, runAt } = job(index, due);
    await utils.addJob(identifier, payload, { runAt });
  }
}

async function inBulk(utils, first, count, due) {
  for (let at = 0; at < count; at += BATCH) {
    const size = Math.min(BATCH, count - at);
    await utils.addJobs(Array.from({ length: size }, (_, index) => job(first + at + index, due)));
  }
}

async function paced(utils, first, count, rate) {
  const dues = [];
  const begun = now();
  for (let index = 0; index < count; index += 1) {
    await sleep(Math.max(0, begun + (1000 * index) / rate - now()));
    const due = now() + 1000 + 9000 * Math.random();
    dues.push(due / 1000);
    await oneByOne(utils, first + index, 1, due);
  }
  return dues;
}

async function produce(what, count, first = 0, number = 0) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  const begun = now();
  let due = [];
  if (what === "burst") await inBulk(utils, first, count, number * 1000);
  else if (what === "paced") due = await paced(utils, first, count, number);
  else if (what === "enqueue") await oneByOne(utils, WAITING, count, begun + FAR_MS);
  else await inBulk(utils, WAITING, count, begun + FAR_MS);
  const ended = now();
  await utils.release();
  console.log(JSON.stringify({ per_second: (1000 * count) / (ended - begun), ended: ended / 1000, due }));
}

const [role, what, ...numbers] = process.argv.slice(2);
if (role === "worker") await work();
else await produce(what, ...numbers.map(Number));
