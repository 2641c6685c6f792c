// An application with posthog-node that decides its visitors' flags: from the definitions, and by asking.
//
//   node flags.mjs --host http://127.0.0.1:8320 --key phc_… --secret-key phx_… --asked 20 < visitors.jsonl
//
// Each line of input is a visitor: distinct_id, person_properties, groups, group_properties. For each a line is written: what the definitions
// give (`flags`, `payloads`; what the SDK can't decide by itself is absent), and for the first `--asked` what the service says (`answered`).
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { PostHog } from 'posthog-node'

const { values: options } = parseArgs({
  options: {
    host: { type: 'string' },
    key: { type: 'string' },
    'secret-key': { type: 'string' },
    asked: { type: 'string', default: '0' },
  },
})

const deciding = new PostHog(options.key, { host: options.host, secretKey: options['secret-key'], featureFlagsRequestTimeoutMs: 30000 })
const asking = new PostHog(options.key, { host: options.host, featureFlagsRequestTimeoutMs: 30000 })
for (const client of [deciding, asking]) client.on('error', (error) => console.error(`complaint: ${error}`))
if (!(await deciding.waitForLocalEvaluationReady())) throw new Error('there are no definitions')

let left = Number(options.asked)
for await (const line of createInterface({ input: process.stdin })) {
  const visitor = JSON.parse(line)
  const known = { personProperties: visitor.person_properties, groups: visitor.groups, groupProperties: visitor.group_properties }
  const decided = await deciding.getAllFlagsAndPayloads(visitor.distinct_id, { ...known, onlyEvaluateLocally: true })
  const said = { distinct_id: visitor.distinct_id, flags: decided.featureFlags, payloads: decided.featureFlagPayloads }
  if (left-- > 0) {
    const answered = await asking.getAllFlagsAndPayloads(visitor.distinct_id, { ...known, disableGeoip: true })
    said.answered = { flags: answered.featureFlags, payloads: answered.featureFlagPayloads }
  }
  console.log(JSON.stringify(said))
}
await Promise.all([deciding.shutdown(), asking.shutdown()])
