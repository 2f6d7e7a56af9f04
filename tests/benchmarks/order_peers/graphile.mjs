// Graphile Worker: its queue is in the same PostgreSQL. `enqueue` reads the ids from standard input.
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.DELAYQ_BENCH_PEER + "/package.json");
const { run, makeWorkerUtils, Logger } = require("graphile-worker");

const connectionString = process.env.DELAYQ_BENCH_POSTGRES;
const logger = new Logger(() => () => {});
const table = process.env.DELAYQ_BENCH_TABLE;

if (process.argv[2] === "enqueue") {
  const ids = JSON.parse(fs.readFileSync(0, "utf8"));
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  for (let at = 0; at < ids.length; at += 500) {
    await utils.addJobs(ids.slice(at, at + 500).map((id) => ({ identifier: "close", payload: { id } })));
  }
  await utils.release();
} else {
  const close = async ({ id }, { query }) => {
    await query(`update ${table} set state = 'closed' where id = $1 and state = 'pending'`, [id]);
  };
  const runner = await run({
    connectionString, logger, concurrency: 24, maxPoolSize: 24, noHandleSignals: true, taskList: { close },
  });
  process.on("SIGTERM", async () => { await runner.stop(); process.exit(0); });
  await runner.promise;
}
