// BullMQ, with node-postgres for the orders. `enqueue` reads the ids from standard input.
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.DELAYQ_BENCH_PEER + "/package.json");
const { Queue, Worker } = require("bullmq");
const { Pool } = require("pg");

const address = new URL(process.env.DELAYQ_BENCH_REDIS);
const connection = { host: address.hostname, port: Number(address.port), maxRetriesPerRequest: null };
const table = process.env.DELAYQ_BENCH_TABLE;

if (process.argv[2] === "enqueue") {
  const ids = JSON.parse(fs.readFileSync(0, "utf8"));
  const queue = new Queue("orders", { connection });
  for (let at = 0; at < ids.length; at += 500) {
    await queue.addBulk(ids.slice(at, at + 500).map((id) => (
      { name: "close", data: { id }, opts: { attempts: 5, removeOnComplete: true } }
    )));
  }
  await queue.close();
} else {
  const pool = new Pool({ connectionString: process.env.DELAYQ_BENCH_POSTGRES, max: 24 });
  const close = async ({ data }) => {
    await pool.query(`update ${table} set state = 'closed' where id = $1 and state = 'pending'`, [data.id]);
  };
  const worker = new Worker("orders", close, { connection, concurrency: 24 });
  process.on("SIGTERM", async () => { await worker.close(true); process.exit(0); });
}
