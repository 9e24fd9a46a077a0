// Checks the download for speedscope by speedscope's own schema: node schema.mjs URL-OF-THE-VIEWER SERVICE
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import Ajv from "ajv";

const [url, service] = process.argv.slice(2);
const published = createRequire(import.meta.url).resolve("speedscope/dist/release/file-format-schema.json");
const schema = JSON.parse(await readFile(published, "utf8"));
const answer = await fetch(`${url}/speedscope.json?since=all&service=${encodeURIComponent(service)}`);
if (!answer.ok) {
    console.error(`speedscope.json of ${service}: ${answer.status} ${await answer.text()}`);
    process.exit(1);
}
const file = await answer.json();
const validate = new Ajv({ strict: false }).compile(schema);
if (!validate(file)) {
    console.error(validate.errors);
    process.exit(1);
}
const weights = file.profiles[0].weights.reduce((sum, weight) => sum + weight, 0);
if (!(weights > 0) || weights !== file.profiles[0].endValue) {
    console.error(`the weights of ${service} add up to ${weights}, and the profile ends at ${file.profiles[0].endValue}`);
    process.exit(1);
}
console.log(`speedscope.json of ${service}: ${file.shared.frames.length} frames, ${weights} ${file.profiles[0].unit}`);
