// An application with posthog-node: everything that it can send, and then page after page being read.
//
//   node program.mjs --host http://127.0.0.1:8320 --key phc_… --count 1000 --journal sent.jsonl [--mode plain]
//
// Each event that the SDK is about to send is a line of the journal: its uuid, name and distinct_id. With `--parts 3` it stops after a third and
// after two thirds, says so on its output, and goes on when it is told to by a line of input. POSTHOG_CAPTURE_MODE=v1 is the SDK's own switch.
import { randomUUID } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { PostHog } from 'posthog-node'

const FLAG = 'new-checkout'
const MODES = {
  queue: {},
  plain: { disableCompression: true },
  historical: { historicalMigration: true },
  immediate: { flushAt: 1 },
}
const { values: options } = parseArgs({
  options: {
    host: { type: 'string' },
    key: { type: 'string' },
    journal: { type: 'string' },
    count: { type: 'string', default: '1000' },
    mode: { type: 'string', default: 'queue' },
    parts: { type: 'string', default: '1' },
    'secret-key': { type: 'string' },
  },
})

const journal = createWriteStream(options.journal)
let noted = 0

// Called by the SDK for each event; gives it the uuid that it would be given anyway, to know it.
function note(event) {
  event.uuid ??= randomUUID()
  journal.write(JSON.stringify({ uuid: event.uuid, event: event.event, distinct_id: event.distinctId }) + '\n')
  noted += 1
  return event
}

const client = new PostHog(options.key, {
  host: options.host,
  before_send: note,
  flushInterval: 100,
  secretKey: options['secret-key'],
  featureFlagsPollingInterval: 1000,
  ...MODES[options.mode],
})
client.on('error', (error) => console.error(`complaint: ${error}`))

// People: what is known of them, and that two of them are one.
function tellPeople() {
  client.identify({ distinctId: 'ann', properties: { plan: 'pro', email: 'ann@example.com', coupon: 'X' } })
  client.setPersonProperties({ distinctId: 'ann', propertiesOnce: { first_seen: '2026-01-01' } })
  client.setPersonProperties({ distinctId: 'ann', properties: { name: 'Ann Müller 茶' }, propertiesOnce: { first_seen: '2026-02-02' } })
  client.unsetPersonProperties({ distinctId: 'ann', properties: 'coupon' })
  client.capture({ distinctId: 'anon-7', event: 'cart opened' })
  client.alias({ distinctId: 'anon-7', alias: 'bea' })
}

// A company that is described, and one that is only mentioned.
function tellGroups() {
  const properties = { name: 'Acme', seats: 5, since: '2026-01-01T00:00:00Z' }
  client.groupIdentify({ groupType: 'company', groupKey: 'acme', properties, distinctId: 'ann' })
  client.capture({ distinctId: 'ann', event: 'invoice paid', groups: { company: 'acme' }, properties: { amount: 12.5 } })
  client.capture({ distinctId: 'ann', event: 'invoice lost', groups: { company: 'ghost' } })
}

// Pages, screens, surveys, flags by name, and somebody who stays unknown.
function tellViews() {
  const tell = (event, properties) => client.capture({ distinctId: 'ann', event, properties })
  tell('$pageview', { $current_url: 'https://shop.example.com/tea?q=1#top' })
  tell('$screen', { $screen_name: 'Checkout' })
  tell('survey shown', { $survey_id: 's-1' })
  tell('survey dismissed', { $survey_id: 's-1' })
  tell('survey sent', { $survey_id: 's-1', $survey_response: 'tea' })
  tell('$feature_flag_called', { $feature_flag: 'old-banner', $feature_flag_response: 'red' })
  tell('banner seen', { '$feature/old-banner': 'red' })
  client.capture({ distinctId: 'passer-by', event: 'page glimpsed', properties: { $process_person_profile: false } })
}

// An event with its own time and uuid, an exception, one of a language model, and one with what surrounds it.
function tellMore() {
  const uuid = '018f0000-0000-7000-8000-000000000001'
  client.capture({ distinctId: 'ann', event: 'order imported', timestamp: new Date('2026-03-01T12:00:00+02:00'), uuid, disableGeoip: false })
  client.captureException(new Error('no tea left'), 'ann', { shelf: 3 })
  client.capture({ distinctId: 'ann', event: '$ai_generation', properties: { $ai_model: 'small', $ai_trace_id: 't-1' } })
  client.captureAi({ distinctId: 'ann', event: '$ai_trace', properties: { $ai_trace_id: 't-1' } })
  client.withContext({ distinctId: 'ann', properties: { shop: 'Köln' } }, () =>
    client.capture({ event: 'tea chosen', properties: { nested: { list: [1, null, { deep: [true] }] } } })
  )
}

// The same at once: each call resolves when the event was sent.
async function tellAtOnce() {
  await client.identifyImmediate({ distinctId: 'ann', properties: { paid: true } })
  await client.aliasImmediate({ distinctId: 'anon-8', alias: 'cem' })
  await client.groupIdentifyImmediate({ groupType: 'company', groupKey: 'acme', properties: { paid: true } })
  await client.captureExceptionImmediate(new Error('no milk left'), 'ann')
}

// Events up to so many in all.
async function readPages(until) {
  for (let n = noted; noted < until; n += 1) {
    const event = { distinctId: `reader-${n % 50}`, event: 'page read', properties: { n, text: 'Zoë 茶碗 \u2028' } }
    if (options.mode === 'immediate') await client.captureImmediate(event)
    else client.capture(event)
    if (n % 20 === 0) await new Promise(setImmediate) // an application has other things to do
  }
}

// What the flag is, from the service and from the definitions at hand, and how long that took.
async function askFlag(part) {
  if (options['secret-key']) await client.reloadFeatureFlags()
  const began = performance.now()
  const flags = await client.evaluateFlags(`asker-${part}`)
  const enabled = flags.isEnabled(FLAG)
  const seconds = (performance.now() - began) / 1000
  client.capture({ distinctId: `asker-${part}`, event: 'checkout started', flags })
  return { part, seconds, enabled, definitions: client.getFeatureFlagKeysByEvaluationRuntime('server').sort() }
}

const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const [count, parts] = [Number(options.count), Number(options.parts)]
for (let part = 1; part <= parts; part += 1) {
  if (part === 1) {
    for (const tell of [tellPeople, tellGroups, tellViews, tellMore, tellAtOnce]) await tell()
  }
  const answer = await askFlag(part)
  await readPages(Math.floor((count * part) / parts))
  await client.flush()
  console.log(JSON.stringify(answer))
  if (part < parts) await input.next()
}
await client.shutdown()
journal.end(() => process.exit())
