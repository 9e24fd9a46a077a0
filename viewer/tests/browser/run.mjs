// Clicks through a running viewer, whatever data it holds: services, span names, trace, flame graph, function, diff.
//
//   node run.mjs BASE_URL OUT_DIR
//
// SERVICE, SPAN and FUNCTION (environment) say what to click; without them the first of each is taken. CHROMIUM is the
// browser to use. Exits 1 with a sentence at the first thing that is not as it should be; screenshots go to OUT_DIR.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [base, out] = process.argv.slice(2);
assert(base && out, "usage: node run.mjs BASE_URL OUT_DIR");
mkdirSync(out, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const complaints = [];
const open = async (options) => {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, ...options });
  page.setDefaultTimeout(15_000);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error}`));
  page.on("response", (response) => {
    if (response.status() >= 400) complaints.push(`${response.url()}: HTTP ${response.status()}`);
  });
  return page;
};
const api = async (path) => {
  const response = await fetch(base + path);
  assert.equal(response.status, 200, path);
  return response.json();
};
const encode = encodeURIComponent;
const escapeRegExp = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

try {
  const page = await open();
  const shot = (name, options) => page.screenshot({ path: join(out, `${name}.png`), ...options });
  const graphIsReady = () => page.locator("#graph[data-ready]").waitFor();

  // Numbers are made twice: by the server for tables, and by the script for frames. What a row of the table says of a function is
  // what the title of its frame says, if that is the only frame of it. Calls `check(cells, title lines, the frame's class)`.
  const numbersAgree = async (answer, check) => {
    const count = new Map();
    for (const [, number] of answer.frames) count.set(number, (count.get(number) ?? 0) + 1);
    const once = answer.functions.filter((_, number) => count.get(number) === 1);
    const seen = await page.evaluate((once) => {
      const of = (one) => one.dataset.function + "\n" + one.dataset.file;
      const known = new Set(once.map(({ name, file }) => name + "\n" + file));
      const rows = new Map([...document.querySelectorAll(".functions tbody tr")].map((row) => [of(row), [...row.querySelectorAll("td")]]));
      return [...document.querySelectorAll("#graph .frame")]
        .filter((frame) => known.has(of(frame)) && rows.has(of(frame)))
        .map((frame) => ({
          cells: rows.get(of(frame)).map((cell) => ({ text: cell.textContent.trim(), title: cell.title, class: cell.className })),
          lines: frame.title.split("\n"),
          class: frame.className,
        }));
    }, once);
    assert(seen.length > 0, "no row of the table has a single frame");
    for (const { cells, lines, class: classes } of seen) check(cells, lines, classes);
  };

  // What to click.
  const { services } = await api("/api/services");
  assert(services.length > 0, "the viewer holds no service");
  const service = process.env.SERVICE ?? services[0].service;
  const { spans } = await api(`/api/spans?service=${encode(service)}`);
  const span = process.env.SPAN ?? spans.find((row) => row.samples > 0 && row.count > 0)?.name;
  assert(span, `${service} has no span name with spans and samples`);
  const row = spans.find((one) => one.name === span);
  assert(row, `${service} has no span name ${span}`);
  const wanted = process.env.FUNCTION ?? row.hottest.function;

  // Services.
  await page.goto(base + "/");
  await shot("1-services");
  await page.locator("tbody th a", { hasText: service }).first().click();

  // Span names: the one that is wanted is there, the headers sort.
  await page.waitForURL(/\/spans\?/);
  await shot("2-spans");
  await page.locator("thead a", { hasText: "name" }).first().click();
  await page.waitForURL(/sort=name/);
  assert.equal(await page.locator("thead th[aria-sort]").innerText().then((text) => text.trim().split(/\s/)[0]), "name");
  const listed = await page.locator("tbody tr:not(.outside) th").allInnerTexts();
  const byCodePoint = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
  assert.deepEqual(listed, [...listed].sort(byCodePoint), "the span names are not sorted");
  assert.equal(await page.locator("tbody tr").last().locator("th").innerText(), "(outside spans)");
  await page.getByRole("rowheader", { name: span, exact: true }).getByRole("link").click();

  // Traces of the name, most CPU first.
  await page.waitForURL(/\/traces\?/);
  await page.getByRole("link", { name: "most CPU" }).click();
  await page.waitForURL(/sort=cpu/);
  await shot("3-traces");
  await page.locator("tbody th a").first().click();

  // The waterfall; from it to the flame graph of the span with the most samples.
  await page.waitForURL(/\/trace\/[0-9a-f]{32}$/);
  await shot("4-trace");
  const started = page.locator(".sums time");
  assert(!/UTC/.test(await started.innerText()), "a time is not in local time");
  assert.match(await started.getAttribute("title"), /^\d{4}-\d\d-\d\d .* UTC$/);
  const trace = await api(new URL(page.url()).pathname.replace("/trace/", "/api/trace/"));
  assert.equal(await page.locator("tbody tr").count(), trace.spans.length);
  const most = trace.spans.reduce((best, one) => (one.samples > best.samples ? one : best));
  if (most.samples > 0) {
    await page.locator("tbody tr").nth(trace.spans.indexOf(most)).locator("a.flame").click();
    await page.waitForURL(new RegExp(`/flame\\?span=${most.span}`));
    await graphIsReady();
    await shot("5-flame-of-span");
  }

  // The flame graph of the name.
  await page.goto(`${base}/flame?service=${encode(service)}&name=${encode(span)}`);
  await graphIsReady();
  await shot("6-flame-of-name");
  const query = `service=${encode(service)}&name=${encode(span)}`;
  const flame = await api(`/api/flame?${query}`);
  const frame = page.locator(".frame").filter({ hasText: wanted }).first();
  assert.equal(await frame.innerText(), await frame.getAttribute("data-function"));
  assert((await frame.getAttribute("title")).includes("±"), "the title of a frame has no error");
  const merged = await page
    .locator(".frame")
    .evaluateAll((all, name) => all.filter((one) => one.dataset.function === name).reduce((sum, one) => sum + Number(one.dataset.self), 0), wanted);
  const top = await api(`/api/top?${query}`);
  const function_ = top.functions.filter((one) => one.function === wanted);
  assert(function_.length > 0, `${span} has no function ${wanted}`);
  const share = function_.reduce((sum, one) => sum + one.own, 0) / top.total;
  assert(Math.abs(merged / flame.total - share) <= 0.01, `${wanted}: the graph shows ${merged / flame.total} own, the API has ${share}`);
  assert.equal(flame.total, row.cpu_ns, "the graph and the table of span names differ");

  const sumsAgree = ([own, ownShare, total, totalShare], lines) => {
    assert(lines.includes(`total ${total.text}, ${totalShare.text}`), `a row has ${total.text}, ${totalShare.text}; its frame: ${lines}`);
    if (ownShare.text === "") return;
    assert(lines.includes(`own ${own.text}, ${ownShare.text}`), `a row has ${own.text}, ${ownShare.text}; its frame: ${lines}`);
  };
  await numbersAgree(flame, sumsAgree);

  // Search: the share of samples with a match in their stack.
  const names = (row) => Object.values(flame.functions[row[1]]).join("\n").toLowerCase();
  const matching = (text) => {
    // A row counts with all below it, so only the first match of a stack does.
    const inside = [];
    return flame.frames.reduce((sum, row, at) => {
      inside[at] = at > 0 && (inside[row[0]] || names(row).includes(text.toLowerCase()));
      return inside[at] && !inside[row[0]] ? sum + row[3] : sum;
    }, 0);
  };
  let said = "";
  // A caller first, which has most of its samples in what it called.
  for (const text of [flame.functions[flame.frames[1][1]].name, wanted]) {
    await page.fill("#search", text);
    said = await page.locator("#matches").innerText();
    assert.match(said, /^[\d.]+ % ± [\d.]+ matches$/);
    const expected = (matching(text) / flame.total) * 100;
    assert(Math.abs(parseFloat(said) - expected) <= 1, `search for ${text} says ${said}, the samples say ${expected} %`);
  }
  assert((await page.locator(".frame.match").count()) > 0);
  await shot("7-search");
  await page.reload();
  await graphIsReady();
  assert.equal(await page.inputValue("#search"), wanted, "the address does not hold the search");
  await page.fill("#search", "");
  assert.equal(await page.locator("#matches").innerText(), "");

  // Zoom: by click, back by the breadcrumb, by keyboard, back by Back.
  const width = async (locator) => (await locator.boundingBox()).width;
  const whole = await width(page.locator("#graph"));
  const narrow = page.locator(`.frame[data-function=${JSON.stringify(wanted)}]`).first();
  const level = await narrow.getAttribute("aria-level");
  await narrow.click();
  const zoomed = page.locator(`.frame[data-function=${JSON.stringify(wanted)}][aria-level="${level}"]`);
  assert(Math.abs((await width(zoomed)) - whole) <= 1, "a zoomed frame does not fill the width");
  assert.equal(await page.locator("#crumbs button").last().innerText(), wanted);
  await shot("8-zoom");
  await page.locator("#crumbs button").first().click();
  assert.equal(await page.locator("#crumbs button").count(), 1);
  await page.locator(".frame").first().focus();
  await page.locator('.frame[tabindex="0"]').focus();
  await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-level")), "2");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("#crumbs button").count(), 2);
  await page.goBack();
  await page.locator("#crumbs button:only-child").waitFor();
  await page.locator("#flip").click();
  const [rootTop, graphHeight] = await page.evaluate(() => [document.querySelector(".frame.rest").offsetTop, document.getElementById("graph").clientHeight]);
  assert(graphHeight === 20 || rootTop > 0, "the graph was not turned round");

  // Pointing at a frame says it in words and lights its row.
  await narrow.hover();
  assert.match(await page.locator("#hovered").innerText(), /own .* ± .*/);
  assert((await page.locator("tr.pointed").count()) > 0, "the row of a frame that is pointed at is not lit");

  // A function: callers, callees, lines; from there to its caller.
  await page.locator(".functions a.function", { hasText: wanted }).first().click();
  await page.waitForURL(/\/function\?/);
  assert.match(await page.locator("h1").innerText(), new RegExp(`^${escapeRegExp(wanted)}`));
  await shot("10-function");
  const functionPage = page.url();
  const caller = await page.locator("section[aria-label=Callers] a.function").first().innerText();
  await page.locator("section[aria-label=Callers] a.function").first().click();
  await page.locator("h1", { hasText: caller }).waitFor();
  assert((await page.locator("section[aria-label=Callees] a.function", { hasText: wanted }).count()) > 0, "a caller does not have its callee");

  // Whatever unit a client sends, rows and frames say it; also one that every object of a script has by this name.
  for (const { service: other } of services) {
    await page.goto(`${base}/flame?service=${encode(other)}`);
    await graphIsReady();
    const { frames, functions } = await api(`/api/flame?service=${encode(other)}`);
    await numbersAgree({ frames, functions }, sumsAgree);
  }

  // Folding merges frames, lines part them; both stand in the address.
  await page.goto(`${base}/flame?service=${encode(service)}`);
  await graphIsReady();
  const plain = await page.locator(".frame").count();
  await page.getByRole("link", { name: "fold runtime" }).click();
  await page.waitForURL(/fold=1/);
  await graphIsReady();
  assert((await page.locator(".frame").count()) < plain, "folding did not merge frames");
  assert((await page.locator(".frame", { hasText: "(runtime and libraries)" }).count()) > 0);
  await shot("11-folded");
  await page.getByRole("link", { name: "lines", exact: true }).click();
  await page.waitForURL(/lines=1/);
  await graphIsReady();
  assert.match(await page.locator(".functions .file").first().innerText(), /:\d+$/);

  // A filter keeps to the address what was filled in, and chooses fewer spans.
  await page.goto(`${base}/spans?service=${encode(service)}`);
  const total = (rows) => rows.reduce((sum, one) => sum + one.count, 0);
  await page.locator(".filter summary").click();
  await page.getByLabel("name has").fill(span.slice(1, 4));
  await page.getByLabel("wall at least").fill("p50");
  await shot("12-filter");
  await page.getByRole("button", { name: "Apply" }).click();
  await page.waitForURL(/dur%3E=p50/);
  assert(!/=(&|$)/.test(page.url()), `the address has empty parameters: ${page.url()}`);
  const chosen = await api(`/api/spans?service=${encode(service)}&name~=${encode(span.slice(1, 4))}&dur%3E=p50`);
  assert(total(chosen.spans) > 0 && total(chosen.spans) < total(spans), "the filter chose all spans or none");
  assert.equal(await page.locator("tbody tr:not(.outside)").count(), chosen.spans.length);
  await page.getByRole("link", { name: "Clear" }).click();
  await page.waitForURL((url) => !url.search.includes("dur"));

  // Slow spans against fast ones.
  await page.goto(`${base}/flame?${query}`);
  await page.getByRole("link", { name: /with its slow ones/ }).click();
  await page.waitForURL(/\/diff\?/);
  await graphIsReady();
  const diff = await api("/api/diff" + new URL(page.url()).search);
  assert.equal(await page.locator(".side").first().locator(".sums b").last().innerText(), diff.a.samples === 1 ? "1 sample" : `${diff.a.samples.toLocaleString("en")} samples`);
  assert.equal(await page.locator(".changes a.function").first().innerText(), diff.changes[0].function);
  const coloured = await page.locator(".frame.more, .frame.less").count();
  // A function may surely have changed where none of its frames has, each of which has less.
  const sure = diff.compared.filter(([, , sure]) => sure).length;
  assert(coloured <= sure, `${sure} frames have surely changed; the graph colours ${coloured}`);
  await numbersAgree(diff, (cells, lines, classes) => {
    const { title, class: judged } = cells.at(-1);
    const change = title.slice(title.indexOf("change "));
    const isUnsure = judged.split(" ").includes("unsure");
    assert.equal(lines.at(-1), isUnsure ? `${change}, which may be chance` : change);
    for (const word of ["unsure", "more", "less"]) {
      const [drawn, said] = [classes, judged].map((names) => names.split(" ").includes(word));
      assert.equal(drawn, said, `${lines}: the table and the graph differ in ${word}`);
    }
  });
  await page.fill("#search", wanted);
  assert.match(await page.locator("#matches").innerText(), /^a [\d.]+ % ± [\d.]+, b [\d.]+ % ± [\d.]+ matches$/);
  await shot("13-diff");
  const diffPage = page.url();
  await page.getByRole("link", { name: "swap a and b" }).click();
  await page.waitForURL((url) => url.href !== diffPage);
  await graphIsReady();

  // Where the time went, where samples say it: bars, frames and tables have the states that the API has.
  let timePage = null;
  let waitsPage = null;
  const timed = (await api(`/api/spans?service=${encode(service)}`)).spans.find((one) => one.name === span);
  if (timed.states) {
    await page.goto(`${base}/spans?service=${encode(service)}&sort=waits`);
    assert.equal(await page.locator("thead th[aria-sort]").innerText().then((text) => text.trim().split(/\s/)[0]), "where");
    const bar = page.locator("tbody tr").filter({ has: page.getByRole("rowheader", { name: span, exact: true }) }).locator("svg.spent");
    const drawn = await bar.locator("rect").evaluateAll((all) => all.map((one) => [one.getAttribute("class"), parseFloat(one.getAttribute("width")), getComputedStyle(one).fill]));
    const spent = Object.values(timed.states).reduce((sum, value) => sum + value, 0);
    const whole = Math.max(spent, timed.wall_total_ns ?? 0);
    for (const [state, value] of Object.entries(timed.states)) {
      const [, wide] = drawn.find(([name]) => name === `in-${state}`);
      assert(Math.abs(wide - (100 * value) / whole) < 0.01, `the bar of ${span} has ${wide} % in ${state}`);
    }
    assert(Math.abs(drawn.reduce((sum, [, wide]) => sum + wide, 0) - 100) < 0.1, `the bar of ${span} is not full: ${JSON.stringify(drawn)}`);
    assert.equal(new Set(drawn.map(([, , fill]) => fill)).size, drawn.length, `two parts of a bar have one colour: ${JSON.stringify(drawn)}`);
    await shot("14-where-it-went");
    await page.goto(`${base}/flame?${query}`);
    await page.getByRole("link", { name: "Where the time went" }).click();
    await page.waitForURL(/type=wall/);
    await graphIsReady();
    timePage = page.url().slice(base.length);
    const time = await api("/api/flame" + new URL(page.url()).search);
    assert.deepEqual(Object.keys(time.states), await page.locator("[data-state]").evaluateAll((all) => all.map((one) => one.dataset.state)));
    const painted = await page.locator(".frame:not(.rest)").evaluateAll((all) => all.map((one) => [one.title, getComputedStyle(one).backgroundImage]));
    for (const [title, image] of painted) assert(/linear-gradient/.test(image) && / of it$/.test(title), `a frame has no state: ${title} ${image}`);
    await numbersAgree(time, sumsAgree);
    await shot("15-flame-of-time");
    await page.getByRole("link", { name: "waits", exact: true }).click();
    await page.waitForURL(/state=waits/);
    await graphIsReady();
    const waits = await api("/api/flame" + new URL(page.url()).search);
    // A collection of garbage is CPU time too.
    const noWaits = ["cpu", "gc", "not_told"];
    const waited = time.total - noWaits.reduce((sum, state) => sum + (time.states[state] ?? 0), 0);
    assert(noWaits.every((state) => !(state in waits.states)) && waits.total === waited, `waits are ${JSON.stringify(waits.states)} of ${JSON.stringify(time.states)}`);
    await shot("16-flame-of-waits");
    await page.getByRole("link", { name: "What do slow ones wait for that fast ones do not?" }).click();
    await page.waitForURL(/\/diff\?.*type=wall/);
    await graphIsReady();
    waitsPage = page.url().slice(base.length);
    const compared = await api("/api/diff" + new URL(page.url()).search);
    assert.equal(await page.locator(".of-states tbody tr").count(), compared.states.length);
    await shot("17-slow-waits");
  }

  // The box takes ids; what is not there is said in words.
  await page.fill("header input", trace.trace);
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(`/trace/${trace.trace}$`));
  assert.deepEqual(complaints, []);
  await page.goto(`${base}/trace/${"ab".repeat(16)}`);
  assert.match(await page.locator("main").innerText(), /There is no trace/);
  await shot("9-not-found");
  complaints.length = 0; // the 404 was asked for

  // Dark, narrow, and without a script: every page fits and has its numbers.
  const pages = {
    services: "/",
    spans: `/spans?service=${encode(service)}`,
    traces: `/traces?${query}`,
    trace: `/trace/${trace.trace}`,
    flame: `/flame?${query}`,
    function: functionPage.slice(base.length),
    diff: diffPage.slice(base.length),
    ...(timePage ? { "flame-of-time": timePage, "slow-waits": waitsPage } : {}),
  };
  for (const [name, options] of [
    ["dark", { colorScheme: "dark" }],
    ["narrow", { viewport: { width: 400, height: 800 } }],
    ["no-script", { javaScriptEnabled: false, viewport: { width: 400, height: 800 } }],
  ]) {
    const other = await open(options);
    for (const [kind, path] of Object.entries(pages)) {
      await other.goto(base + path);
      const drawn = ["flame", "diff", "flame-of-time", "slow-waits"].includes(kind);
      if (drawn && name === "no-script") assert.match(await other.locator("main").innerText(), /drawn by a script/);
      else if (drawn) await other.locator("#graph[data-ready]").waitFor();
      assert((await other.locator("tbody tr").count()) > 0, `${name}: the page ${path} has no rows`);
      const box = await other.locator("main").boundingBox();
      const wide = name === "no-script" ? 0 : await other.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert(wide <= 0 && box.width <= (options.viewport?.width ?? 1280), `${name}: ${path} is ${wide} px too wide`);
      await other.screenshot({ path: join(out, `${kind}-${name}.png`), fullPage: name === "narrow" });
    }
    await other.close();
  }
  assert.deepEqual(complaints, []);
  console.log(`browser: ${service} > ${span} > ${wanted}: ${(share * 100).toFixed(1)} % own, search says ${said}; screenshots in ${out}`);
} catch (error) {
  console.error(`browser: ${error.message}`);
  for (const complaint of complaints) console.error(`  console: ${complaint}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
