// A page with an older posthog-js or posthog-js-lite, which sends marked events and says when it has handed them over.
//
//   page.html?sdk=posthog-js-1.57&host=http://127.0.0.1:8320&key=phc_…&name=js-1.57&part=1&count=30&ahead=3600000
//
// `ahead`: milliseconds by which the browser's clock is wrong. `window.done` is true once every event was given to the SDK.
const wanted = Object.fromEntries(new URLSearchParams(location.search))
const ahead = Number(wanted.ahead)
const now = Date.now
const RightDate = Date

if (ahead) {
  window.Date = class extends RightDate {
    constructor(...given) {
      if (given.length) super(...given)
      else super(now() + ahead)
    }
    static now() {
      return now() + ahead
    }
  }
}

// What tells one event from all others, text that encodings get wrong, and when it really was.
function marked(n) {
  return { mark: `${wanted.name}:${wanted.part}:${n}:`, at: new RightDate(now()).toISOString(), text: 'Zoë 茶碗 😀' }
}

async function useScript() {
  await new Promise((loaded, failed) => {
    const script = document.createElement('script')
    Object.assign(script, { src: `sdk/${wanted.sdk}.js`, onload: loaded, onerror: failed })
    document.head.append(script)
  })
  const options = {
    api_host: wanted.host,
    autocapture: false,
    capture_pageview: false,
    capture_pageleave: false,
    disable_session_recording: true,
    opt_out_useragent_filter: true,
    request_queue_config: { flush_interval_ms: 250 },
  }
  window.posthog.init(wanted.key, options)
  const posthog = window.posthog
  posthog.identify(`user-${wanted.name}`)
  if (posthog.people?.set) {
    posthog.people.set({ plan: 'pro 😀' })
    posthog.people.set_once({ first_seen: '2026-01-01' })
  } else {
    posthog.setPersonProperties({ plan: 'pro 😀' }, { first_seen: '2026-01-01' })
  }
  return posthog
}

async function useModule() {
  const { default: PostHog } = await import(`./sdk/${wanted.sdk}.js`)
  const posthog = new PostHog(wanted.key, { host: wanted.host, flushAt: 5, flushInterval: 250 })
  posthog.identify(`user-${wanted.name}`, { plan: 'pro 😀' })
  return posthog
}

const posthog = await (wanted.sdk.startsWith('posthog-js-lite') ? useModule() : useScript())
for (let n = 0; n < Number(wanted.count); n += 1) {
  posthog.capture('page read', marked(n))
  await new Promise((after) => setTimeout(after, 20))
}
window.done = true
