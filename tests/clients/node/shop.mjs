// A service with Grafana's Node client as its documents set it up, wall time, CPU time and the live heap, whose spans are labels of
// wrapWithLabels: nothing else gives Node's samples a span. It works for about as many seconds as its argument says, sends to
// SPANPROF_URL, and prints what a test asks the server for, as JSON.
import Pyroscope from "@pyroscope/nodejs";
import { createHash, randomBytes } from "node:crypto";

const serverAddress = process.env.SPANPROF_URL;
if (!serverAddress) throw new Error("SPANPROF_URL is not set; it says where spanprof listens, such as http://localhost:4040");
const milliseconds = 1000 * Number(process.argv[2] ?? 2);
const service = process.argv[3] ?? "node-shop";

Pyroscope.init({
  serverAddress,
  appName: service,
  tags: { region: "eu" },
  // The heap is sent at each of these intervals alone, and not at the end.
  flushIntervalMs: 1_000,
  wall: { collectCpuTime: true, samplingIntervalMicros: 10_000 },
  heap: { samplingIntervalBytes: 16 << 10 },
});
Pyroscope.start();

const live = [];

function burn(length) {
  let sum = Buffer.alloc(32);
  for (const since = performance.now(); performance.now() - since < length; ) {
    for (let turn = 0; turn < 1000; turn++) sum = createHash("sha256").update(sum).digest();
  }
  return sum;
}

function cart() {
  return burn(milliseconds / 2);
}

function pay() {
  return burn(milliseconds / 4);
}

function background() {
  return burn(milliseconds / 8);
}

function keep() {
  for (let number = 0; number < 64; number++) live.push(Array.from({ length: 4096 }, (_, at) => ({ number, at })));
}

const said = { service, spans: {}, traces: {} };

function inSpan(span_name, work) {
  const [span_id, trace_id] = [8, 16].map((length) => randomBytes(length).toString("hex"));
  said.spans[span_name] = span_id;
  said.traces[span_name] = trace_id;
  Pyroscope.wrapWithLabels({ span_id, trace_id, span_name }, work);
}

inSpan("GET /cart", cart);
inSpan("GET /pay", pay);
background();
keep();
// Waits for an interval, so that wall time and CPU time differ.
await new Promise((resolve) => setTimeout(resolve, 1_200));
// A round of the client's whose timer is due already is an immediate, and throws where it comes after the stop.
await new Promise(setImmediate);
await Pyroscope.stop();
console.log(JSON.stringify(said));
