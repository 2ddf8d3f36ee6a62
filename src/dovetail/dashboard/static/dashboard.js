// Fills the live page by server-sent events and the search page by requests. Text only ever enters as text nodes.
"use strict";

const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]/gu;
const MAX_SHOWN = 300;
const SVG = "http://www.w3.org/2000/svg";

function visible(value) {
  const text = String(value);
  const shown = text.slice(0, MAX_SHOWN).replace(UNSAFE, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
  return text.length > MAX_SHOWN ? `${shown}… (${text.length.toLocaleString("en")} characters)` : shown;
}

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

const byId = (id) => document.getElementById(id);
const count = (number) => Math.round(number).toLocaleString("en");
const cell = (content, kind) => make("td", { class: kind }, content);
const chip = (words, kind) => make("span", { class: `chip ${kind || ""}`.trim() }, words);

// a time beyond what a Date can hold is shown as the number that it is
function time(us) {
  if (us === null) return "–";
  const date = new Date(us / 1000);
  return Number.isNaN(date.getTime()) ? `${us.toLocaleString("en")} µs since 1970` : date.toISOString().replace("T", " ").replace("Z", "");
}

function second(us) {
  return time(us).replace(/\.\d{3}$/, "");
}

function table(columns, rows, kind) {
  const isNumber = (place) => rows.length > 0 && rows[0].children[place]?.classList.contains("number");
  const head = make("tr", {}, ...columns.map((name, place) => make("th", { scope: "col", class: isNumber(place) && "number" }, name)));
  const body = make("tbody", {}, ...rows);
  return make("div", { class: "scroll", tabindex: "0" }, make("table", { class: kind }, make("thead", {}, head), body));
}

// a sentence of ours; what is between backticks is code
const prose = (words) => words.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));

// ---- live

const drawn = new Map();

function fill(id, data, draw) {
  // only what has changed is drawn anew, so that a selection or a focus elsewhere stays
  const key = JSON.stringify(data);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  byId(id).replaceChildren(...draw(data));
}

function sparkline(history) {
  const top = Math.max(1, ...history);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${history.length} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", history.some((value) => value) ? "spark" : "spark still");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `new hops in the last 15 minutes, at most ${top} in 15 seconds`);
  history.forEach((value, place) => {
    if (!value) return;
    const bar = document.createElementNS(SVG, "rect");
    const height = Math.max(1, (20 * value) / top);
    for (const [name, number] of Object.entries({ x: place, y: 20 - height, width: 0.8, height })) bar.setAttribute(name, number);
    svg.append(bar);
  });
  return svg;
}

function stageKind(stage) {
  return { rejected: "error", undeliverable: "error", expired: "warning", delivered: "proven" }[stage];
}

const STATE_WORDS = {
  unsigned: "hops older than a minute are not signed: the server does not sign, or is down",
  "sealing behind": "hops older than an hour are not in the lake: is sealing running?",
};
const STATE_KINDS = { damaged: "bad", unsigned: "bad", "sealing behind": "unsure", writing: "good", idle: "still" };

const CLOCKS_AGREE_S = 5;

function age(us, now) {
  if (us === null) return "never";
  const passed = Math.round((now - us) / 1e6);
  const seconds = Math.abs(passed) <= CLOCKS_AGREE_S ? Math.max(0, passed) : Math.abs(passed);
  const words = passed < -CLOCKS_AGREE_S ? "ahead of this clock" : "ago";
  if (seconds < 120) return `${seconds} s ${words}`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ${words}`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ${words}` : `${count(seconds / 86400)} days ${words}`;
}

// on a narrow screen the heads of the table are gone: the label stands before the value
function labelled(label, element) {
  element.dataset.label = label;
  return element;
}

const unfolded = new Set();

function serverRow(server, now) {
  const stages = Object.entries(server.stages).map(([stage, number]) =>
    make("a", { class: `chip ${stageKind(stage) || ""}`.trim(), href: link({ server: server.server, stage }) }, `${stage} ${count(number)}`));
  const remarks = [
    server.counted < server.hops ? `counted ${count(server.counted)} of ${count(server.hops)} hops so far` : null,
    server.sealed !== null && server.sealed < server.hops ? `${count(server.hops - server.sealed)} hops not sealed yet` : null,
  ].filter(Boolean);
  const details = make("details", { open: unfolded.has(server.server) && "" }, make("summary", {}, "Stages"),
    make("p", { class: "stages" }, ...stages), ...remarks.map((words) => make("p", { class: "quiet" }, words)));
  details.addEventListener("toggle", () => (details.open ? unfolded.add(server.server) : unfolded.delete(server.server)));
  const name = make("a", { href: link({ server: server.server, all: "1" }), title: visible(server.server) }, server.name);
  return make("tr", { class: "server", "data-server": visible(server.server), "data-state": server.state },
    cell(make("span", { class: `state ${STATE_KINDS[server.state]}` }, server.state)),
    cell(make("div", {}, name, " ", make("span", { class: "quiet" }, server.name === server.uri ? server.fabric : `${server.fabric} · ${server.uri}`),
      STATE_WORDS[server.state] ? make("div", { class: "quiet" }, STATE_WORDS[server.state]) : null, details,
      server.damage ? make("div", { class: "problem" }, `damaged: ${server.damage}`) : null), "name"),
    cell(make("div", {}, make("span", { class: "rate" }, server.rate.toLocaleString("en")), sparkline(server.history)), "number"),
    labelled("hops", cell(count(server.hops), "number hops")),
    labelled("not signed yet", cell(count(server.hops - server.signed), "number")),
    labelled("newest hop", cell(make("span", { title: time(server.last_at_us) }, age(server.last_at_us, now)), "time")));
}

function drawServers([servers, now]) {
  if (!servers.length) return [make("p", { class: "quiet" }, "no journals yet")];
  return [table(["state", "server", "hops per second", "hops", "not signed yet", "newest hop"], servers.map((server) => serverRow(server, now)), "servers")];
}

function link(given) {
  return "/search?" + new URLSearchParams(given).toString();
}

function drawReasons(reasons) {
  if (!reasons.length) return [make("p", { class: "quiet" }, "no hop failed")];
  return [table(["reason", "server", "hops"], reasons.map(([reason, number, server, name]) => make("tr", {},
    cell(make("a", { href: link({ server, reason }) }, reason)), cell(make("span", { title: visible(server) }, name), "name"), cell(count(number), "number"))), "reasons")];
}

function drawGauges(endpoints) {
  return endpoints.map((endpoint) => make("details", { class: "gauges", open: endpoints.length === 1 ? "" : null },
    make("summary", {}, endpoint.name, " ", endpoint.error ? chip("no answer", "error") : chip(`${endpoint.figures.length} metrics`)),
    endpoint.error ? make("p", { class: "problem" }, endpoint.error) : table(["figure", "", "value"],
      endpoint.figures.map((figure) => make("tr", { title: visible(figure.help) },
        cell(figure.name.replaceAll("_", " ")), cell(figure.labels, "name"), cell(figure.value.toLocaleString("en"), "number"))))));
}

function drawAlerts(alerts) {
  return [table(["severity", "about", "what", "first seen", "last seen", "newest message"], alerts.map((alert) => make("tr", {},
    cell(chip(alert.severity, alert.severity)),
    cell(make("div", {}, alert.what === "audit" ? make("a", { href: `/audit?check=${encodeURIComponent(alert.about)}#findings`, title: visible(alert.about) }, alert.title) : `${alert.what} ${alert.about}`,
      alert.where ? make("div", { class: "quiet" }, `at ${alert.where}`) : null), "name"),
    cell(make("div", {}, alert.text, alert.advice ? make("div", { class: "quiet" }, ...prose(alert.advice)) : null), "detail"),
    cell(alert.first_us === null ? "" : second(alert.first_us), "time"),
    cell(alert.last_us === null ? "" : second(alert.last_us), "time"),
    cell(alert.message ? make("a", { href: `/message/${alert.message}` }, make("code", {}, alert.message.slice(0, 12))) : ""))), "stack alerts")];
}

const NEWEST_HOP_LIMIT_US = 300e6;

function showPulse(state) {
  const newest = Math.max(...state.servers.map((server) => server.last_at_us || 0), 0);
  const isOld = !newest || Math.abs(state.at_us - newest) > NEWEST_HOP_LIMIT_US;
  byId("pulse").textContent = newest ? `page connected; newest hop ${age(newest, state.at_us)}` : "page connected; no hop yet";
  byId("pulse").className = `pulse ${isOld ? "unsure" : "good"}`;
}

// null: nobody knows, because there is no audit
function setTile(id, number, kind) {
  byId(id).textContent = number === null ? "–" : count(number);
  byId(id).parentElement.className = number === null ? "tile" : `tile ${number ? kind : "good"}`;
}

function showLive(state) {
  const reasons = state.servers.flatMap((server) => Object.entries(server.reasons).map(([reason, number]) => [reason, number, server.server, server.name]));
  reasons.sort((one, other) => other[1] - one[1]);
  byId("tile-hops").textContent = count(state.hops);
  byId("tile-rate").textContent = state.rate.toLocaleString("en");
  byId("tile-servers").textContent = count(state.servers.length);
  byId("tile-refused").textContent = count(reasons.reduce((sum, row) => sum + row[1], 0));
  setTile("tile-now", state.now, "bad");
  setTile("tile-errors", state.errors, "bad");
  setTile("tile-warnings", state.warnings, "unsure");
  showPulse(state);
  byId("alerts-section").hidden = !state.alerts.length;
  byId("gauges-section").hidden = !state.gauges.length;
  fill("alerts", state.alerts, drawAlerts);
  fill("reasons", reasons, drawReasons);
  fill("gauges", state.gauges, drawGauges);
  // ages grow by the second: they are part of what has changed
  fill("servers", [state.servers, Math.floor(state.at_us / 1e6) * 1e6], drawServers);
}

function startLive() {
  const events = new EventSource("/api/events");
  events.onmessage = (event) => {
    showLive(JSON.parse(event.data));
  };
  events.onerror = () => {
    byId("pulse").textContent = "page not connected, retrying";
    byId("pulse").className = "pulse bad";
  };
  addEventListener("pagehide", () => events.close());
}

// ---- message

function startMessage() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
      } catch {
        button.after(make("code", {}, button.dataset.copy)); // no clipboard here: show it, to be copied by hand
      }
    });
  }
}

// ---- search

const SHOWN_AT_ONCE = 200;

function resultRow(result) {
  const type = result.type.split(/[#/]/).filter(Boolean).pop() || "";
  return make("tr", { "data-address": result.address },
    cell(time(result.at_us), "time"),
    cell(make("a", { href: `/message/${result.address}` }, make("code", {}, result.name))),
    cell(type),
    cell(make("span", {}, chip(result.stage, stageKind(result.stage)), result.reason ? ` ${result.reason}` : "")),
    cell(result.counterpart, "name"),
    cell(make("span", { title: result.server }, result.server_name), "name"),
    cell(count(result.hops), "number"));
}

async function startSearch() {
  const found = new Map();
  const damages = new Map();
  const progress = byId("progress");
  const totals = { read: 0, without: 0 };
  let token = "";
  let wanted = SHOWN_AT_ONCE;
  let isStopped = false;

  const draw = (isDone, left, reached) => {
    const rows = [...found.values()].sort((one, other) => other.at_us - one.at_us);
    byId("results").replaceChildren(...(rows.length ? [table(["time", "message", "type", "stage", "counterpart", "server", "hops"], rows.map(resultRow), "results")] : []));
    byId("damages").replaceChildren(...[...damages.values()].map((each) => make("p", { class: "problem" }, `${each.where}: ${each.text}`)));
    const words = [`${count(rows.length)} message${rows.length === 1 ? "" : "s"}`, `${count(totals.read)} hops looked through`];
    if (!isDone) words.push(`${count(left)} left, back to ${time(reached)}`);
    if (totals.without) words.push(`${count(totals.without)} messages have no bytes here and cannot be found by text`);
    words.push(isDone ? "this is everything" : isStopped ? "not everything yet" : "still searching…");
    progress.replaceChildren(make("span", {}, words.join(" · ")));
    if (isDone || isStopped) progress.append(" ");
    const button = make("button", { type: "button" }, isStopped ? "Continue" : "Stop");
    button.addEventListener("click", () => { isStopped = !isStopped; if (!isStopped) { wanted = found.size + SHOWN_AT_ONCE; run(); } });
    if (!isDone) progress.append(" ", button);
    progress.dataset.state = isDone ? "done" : isStopped ? "stopped" : "running";
  };

  const run = async () => {
    while (!isStopped) {
      const parameters = new URLSearchParams(location.search);
      if (token) parameters.set("token", token);
      let answer;
      try {
        const response = await fetch(`/api/search?${parameters}`);
        answer = await response.json();
      } catch (error) {
        answer = { error: `no answer: ${error.message}` };
      }
      if (answer.error) {
        progress.textContent = visible(answer.error);
        progress.dataset.state = "failed";
        return;
      }
      for (const result of answer.results) {
        const key = `${result.server} ${result.address}`;
        const known = found.get(key);
        if (!known) found.set(key, result);
        else if (known.seq !== result.seq) known.hops += result.hops;
      }
      answer.damages.forEach((each) => damages.set(`${each.where} ${each.text}`, each));
      totals.read += answer.hops_read;
      totals.without += answer.without_bytes;
      token = answer.token;
      isStopped = isStopped || (token !== "" && found.size >= wanted);
      draw(!token, answer.hops_left, answer.reached_us);
      if (!token) return;
    }
  };
  await run();
}

// ---- login

function startLogin() {
  byId("login").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = event.target.elements.token.value.trim();
    try {
      const answer = await fetch("/login", { headers: { Authorization: `Bearer ${token}` } });
      if (answer.ok) location.replace("/");
      else byId("login-problem").textContent = "Wrong token.";
    } catch {
      byId("login-problem").textContent = "Invalid token, or the server does not answer.";
    }
  });
}

// empty fields make long addresses
for (const form of document.querySelectorAll("form[role=search]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
}
addEventListener("pageshow", () => document.querySelectorAll("form[role=search] :disabled").forEach((field) => { field.disabled = false; }));

const start = { live: startLive, message: startMessage, search: startSearch, login: startLogin }[document.body.dataset.page];
if (start) start();
