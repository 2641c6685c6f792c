// A page with posthog-js: everything that it can send, and then page after page being read.
//
//   page.html?host=http://127.0.0.1:8320&key=phc_…&count=1000&mode=gzip
//
// Each event that the SDK is about to send is a line of the journal, which outlives the page in `localStorage`: its uuid, name and distinct_id.
// `window.done` is true once everything was handed over; what is still queued then goes when the page is left.
const wanted = Object.fromEntries(new URLSearchParams(location.search))
const UNTIL_LEFT = 4999 // milliseconds that nothing else waits; the SDK allows 5000
const MODES = {
  gzip: {},
  plain: { disable_compression: true },
  xhr: { api_transport: 'XHR' },
  beacon: { request_queue_config: { flush_interval_ms: UNTIL_LEFT } },
  'beacon-base64': { request_queue_config: { flush_interval_ms: UNTIL_LEFT }, disable_compression: true },
}
let sent = 0

// In the modes of beacons everything is still queued when the page is left, however long a slow machine takes until then: a request under
// way would be sent a second time.
if (wanted.mode.startsWith('beacon')) {
  const setUsualTimeout = window.setTimeout
  window.setTimeout = (work, delay, ...more) => (delay === UNTIL_LEFT ? -1 : setUsualTimeout(work, delay, ...more))
}

// Called by the SDK for each event; changes nothing.
function note(event) {
  const line = { uuid: event.uuid, event: event.event, distinct_id: event.properties.distinct_id }
  localStorage.setItem(`journal ${sent}`, JSON.stringify(line))
  sent += 1
  return event
}

posthog.init(wanted.key, {
  api_host: wanted.host,
  before_send: note,
  capture_pageview: true,
  capture_pageleave: true,
  autocapture: true,
  disable_session_recording: true,
  opt_out_useragent_filter: true, // a browser without a window counts as a robot otherwise, whose events are not sent
  // a page of flesh and blood needs no more than the usual 10 a second
  rate_limiting: { events_per_second: 10_000, events_burst_limit: 100_000 },
  request_queue_config: { flush_interval_ms: 250 },
  ...MODES[wanted.mode],
  loaded: () => tell(Number(wanted.count)),
})

// Before anybody is known: an event that makes no person.
function tellAnonymously() {
  posthog.capture('page glimpsed')
}

// People: what is known of them, and that two of them are one.
function tellPeople() {
  posthog.identify('ann', { plan: 'pro', email: 'ann@example.com' }, { first_seen: '2026-01-01' })
  posthog.setPersonProperties({ name: 'Ann Müller 茶' }, { first_seen: '2026-02-02' })
  posthog.capture('cart opened', { distinct_id: 'anon-7' })
  posthog.alias('bea', 'anon-7')
}

// A company that is described, and one that is only mentioned.
function tellGroups() {
  posthog.capture('invoice lost', { $groups: { company: 'ghost' } })
  posthog.group('company', 'acme', { name: 'Acme', seats: 5, since: '2026-01-01T00:00:00Z' })
  posthog.capture('invoice paid', { amount: 12.5 })
}

// Pages, screens, surveys, flags by name, an exception, and an event at a time of its own.
function tellViews() {
  posthog.capture('$pageview', { $current_url: 'https://shop.example.com/tea?q=1#top' })
  posthog.capture('$screen', { $screen_name: 'Checkout' })
  posthog.capture('survey shown', { $survey_id: 's-1' })
  posthog.capture('survey dismissed', { $survey_id: 's-1' })
  posthog.capture('survey sent', { $survey_id: 's-1', $survey_response: 'tea' })
  posthog.capture('$feature_flag_called', { $feature_flag: 'old-banner', $feature_flag_response: 'red' })
  posthog.capture('banner seen', { '$feature/old-banner': 'red' })
  posthog.captureException(new Error('no tea left'), { shelf: 3 })
  posthog.capture('order imported', {}, { timestamp: new Date('2026-03-01T12:00:00+02:00') })
  posthog.capture('order placed', { at: 'once' }, { send_instantly: true })
  posthog.capture('order sealed', {}, { transport: 'sendBeacon' })
  posthog.register({ shop: 'Köln' })
}

// Events up to so many in all.
function readPages(until) {
  const nested = { list: [1, null, { deep: [true] }] }
  while (sent < until) posthog.capture('page read', { n: sent, text: 'Zoë 茶碗 \u2028', nested })
}

function tell(count) {
  for (const tellSome of [tellAnonymously, tellPeople, tellGroups, tellViews]) tellSome()
  posthog.onFeatureFlags(() => posthog.isFeatureEnabled('new-checkout'))
  setTimeout(() => {
    readPages(count)
    window.done = true
  })
}
