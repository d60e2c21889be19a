// Keeps a page recent, and says when it is not: since when, why, and what to do.
//
// The event stream reports each step of a workload, and every two seconds whether the database and the cluster respond. While it is silent, the page asks
// the server itself. So the page notices within five seconds that a server, a database or a session is gone, also where a connection hangs.
// A hidden page has no stream: a browser has six connections to a server, for all its tabs.

const SIGN_IN = "/ui/signin";
const TICK_MS = 500;
const REFRESH_MS = 3000; // between two refreshes of a page
const POLL_MS = 15000; // between two refreshes without a stream
const RETRY_MS = 4000; // between two refreshes after one that failed
const QUIET_MS = 2800; // without a message: after it, the page asks the server
const PROBE_MS = 2000; // between two questions to the server
const LATE_MS = 1500; // the server does not respond if an answer takes longer
const SLOW_MS = 5000; // a refresh is slow if it takes longer
const GIVE_UP_MS = 20000;
const SILENT_STREAM_MS = 7000; // a stream that is silent for longer is opened again

const WORDS = {
  server: "the server does not respond. This page tries again by itself.",
  database: "the database does not respond. Running gangs are not affected. This page tries again by itself.",
  cluster: "the API server of the cluster does not respond. This page tries again by itself.",
  session: "your session has ended.",
  slow: "the server is slow to answer.",
};

function keepRecent() {
  const { events, alive, now: servedAt } = document.body.dataset;
  if (!events) return;
  const shown = document.getElementById("live");
  const banner = document.getElementById("stale");
  const main = () => document.getElementById("main");
  const responded = performance.timeOrigin + (performance.getEntriesByType("navigation")[0]?.responseStart ?? performance.now());
  const clockAhead = Number(servedAt) * 1000 - responded; // of the server, in milliseconds

  let stream = null;
  let streaming = false;
  let streamHeardAt = Date.now();
  let heardAt = responded; // the last sign that the server and the database respond
  let visibleAt = responded; // since then, the page is visible
  let refreshedAt = responded;
  let refreshing = 0; // when the refresh in progress began
  let behind = false; // a step has arrived that the page does not show
  let due = false;
  let nextRefreshAt = 0;
  let probing = 0;
  let probedAt = 0;
  let outage = null; // why the server, the database or the session is gone
  let failure = null; // why the last refresh failed

  // ---- Refreshes

  function refresh() {
    due = true;
    if (outage || document.hidden || document.querySelector("dialog[open]")) return; // tick tries again
    if (Date.now() < nextRefreshAt) return;
    due = false;
    nextRefreshAt = Date.now() + REFRESH_MS;
    document.body.dispatchEvent(new CustomEvent("live"));
  }

  function failed(why) {
    failure = why;
    behind = true;
    nextRefreshAt = Date.now() + RETRY_MS;
    refresh();
  }

  const ofMain = (event) => event.detail?.ctx?.sourceElement?.id === "main";
  document.addEventListener("htmx:before:request", (event) => {
    if (!ofMain(event)) return;
    refreshing = Date.now();
    behind = false;
  });
  // During an outage, a refresh keeps the content of the page.
  document.addEventListener("htmx:before:response", (event) => {
    const answer = event.detail.ctx.response.raw;
    const signedOut = answer.redirected && new URL(answer.url).pathname === SIGN_IN;
    const usable = !signedOut && answer.status < 500 && answer.status !== 429;
    if (!usable) event.preventDefault();
    if (!ofMain(event)) return;
    refreshing = 0;
    // A refresh replaces #main only. Another page has other scripts and dialogs, so it is opened.
    if (usable && (answer.redirected || main().querySelector("[data-problem]"))) {
      event.preventDefault();
      return void (answer.redirected ? location.replace(answer.url) : location.reload());
    }
    if (signedOut) outage = "session";
    else if (answer.status === 503) {
      failed("database");
      probe(); // it can be the cluster
    } else if (!usable) failed(`the server returned status ${answer.status}. This page tries again by itself.`);
    else {
      refreshedAt = Date.now();
      failure = null;
      heard();
    }
    show();
  });
  document.addEventListener("htmx:error", (event) => {
    if (!ofMain(event) || !refreshing) return;
    refreshing = 0;
    failed("server");
    show();
  });

  // ---- Signs of life

  function heard() {
    const before = outage;
    heardAt = Date.now();
    outage = null;
    if (!before) return;
    main().dispatchEvent(new CustomEvent("htmx:abort")); // a request that hangs since the outage
    refreshing = 0;
    nextRefreshAt = 0;
    refresh();
  }

  function lost(why) {
    outage = why;
    show();
  }

  function listen() {
    stream?.close();
    if (document.hidden) return;
    const opened = (stream = new EventSource(events));
    const message = () => {
      streaming = true;
      streamHeardAt = Date.now();
    };
    streamHeardAt = Date.now();
    opened.addEventListener("open", message);
    opened.addEventListener("step", () => {
      message();
      heard();
      behind = true;
      refresh();
    });
    opened.addEventListener("alive", (event) => {
      message();
      const { database, access } = JSON.parse(event.data);
      if (database && access) heard();
      else lost(database ? "cluster" : "database");
      show();
    });
    opened.addEventListener("error", () => {
      streaming = false;
      probe();
    });
  }

  async function probe() {
    if (probing) return;
    probing = Date.now();
    try {
      const answer = await fetch(alive, { cache: "no-store", signal: AbortSignal.timeout(GIVE_UP_MS) });
      if (answer.status === 401) lost("session");
      else if (answer.status === 503) lost((await answer.text()).includes("cluster-unavailable") ? "cluster" : "database");
      else heard();
      // The stream ended, or hangs without an error.
      const silent = Date.now() - streamHeardAt > SILENT_STREAM_MS;
      if (!outage && (stream.readyState === EventSource.CLOSED || silent)) listen();
    } catch {
      lost("server");
    }
    probing = 0;
    probedAt = Date.now();
    show();
  }

  function tick() {
    if (document.hidden) return;
    const now = Date.now();
    const quiet = outage || !streaming || now - heardAt > QUIET_MS;
    if (quiet && now - probedAt > PROBE_MS) probe();
    if (due) refresh();
    if (!streaming && !outage && now - Math.max(refreshedAt, nextRefreshAt) > POLL_MS) refresh();
    show();
  }

  // ---- What the page says

  function reason() {
    const now = Date.now();
    // After the computer has slept, the last sign is old, and no answer has come yet.
    if (!outage && probing && now - probing > LATE_MS) return "server";
    if (!outage && now - Math.max(heardAt, visibleAt) > QUIET_MS + PROBE_MS) return "server";
    if (outage || failure) return outage || failure;
    return refreshing && now - refreshing > SLOW_MS ? "slow" : null;
  }

  function show() {
    const why = document.hidden ? null : reason();
    const state = why ? "stale" : streaming ? "on" : "off";
    if (shown.dataset.state !== state) {
      shown.dataset.state = state;
      shown.textContent = why ? "not refreshed" : streaming ? "live" : "refreshed every 15 s";
    }
    banner.classList.toggle("hidden", !why);
    if (!why) return void (banner.textContent = "");
    const asOf = behind || failure ? refreshedAt : Math.max(refreshedAt, heardAt);
    const text = `Not refreshed since ${clock(asOf + clockAhead, Date.now() + clockAhead)}`;
    if (banner.dataset.text !== `${text} ${why}` || !banner.firstChild) {
      banner.dataset.text = `${text} ${why}`;
      const age = document.createElement("span");
      age.setAttribute("aria-hidden", "true"); // a screen reader does not read each second
      banner.replaceChildren(text, age, `: ${WORDS[why] ?? why}`);
      if (why === "session") banner.append(" ", signIn());
    }
    banner.querySelector("span").textContent = ` (${since(Date.now() - asOf)} ago)`;
  }

  addEventListener("pagehide", () => stream?.close());
  addEventListener("pageshow", (event) => event.persisted && (listen(), tick()));
  document.addEventListener("visibilitychange", () => {
    listen();
    if (document.hidden) return;
    visibleAt = Date.now();
    behind = true; // steps of the meantime
    refresh();
    tick();
  });
  listen();
  setInterval(tick, TICK_MS);
}

function signIn() {
  const link = document.createElement("a");
  link.href = `${SIGN_IN}?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in again";
  return link;
}

// A time of another day has its date.
function clock(milliseconds, now) {
  const at = new Date(milliseconds).toISOString();
  const today = new Date(now).toISOString().slice(0, 10) === at.slice(0, 10);
  return `${today ? "" : `${at.slice(0, 10)} `}${at.slice(11, 19)} UTC`;
}

function since(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

keepRecent();
