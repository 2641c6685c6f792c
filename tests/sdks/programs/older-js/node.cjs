// An application with an older posthog-node, which sends marked events.
//
//   node node.cjs --sdk posthog-node-3.6 --host http://127.0.0.1:8320 --key phc_… --name node-3.6 --count 100 --parts 3 --ahead 3600
//
// `--ahead`: seconds by which its clock is wrong. It sends a part of its events, says so by a line, and waits for one before the next part.
const { createInterface } = require('node:readline')
const { parseArgs } = require('node:util')

const names = ['sdk', 'host', 'key', 'name', 'count', 'parts', 'ahead']
const { values: wanted } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) })
const ahead = Number(wanted.ahead) * 1000
const RightDate = Date
const now = RightDate.now

if (ahead) {
  globalThis.Date = class extends RightDate {
    constructor(...given) {
      if (given.length) super(...given)
      else super(now() + ahead)
    }
    static now() {
      return now() + ahead
    }
  }
}

const { PostHog } = require(wanted.sdk)

async function main() {
  const client = new PostHog(wanted.key, { host: wanted.host, flushAt: 20, flushInterval: 200 })
  const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  for (let part = 1; part <= Number(wanted.parts); part += 1) {
    if (part > 1) await input.next()
    for (let n = 0; n < Number(wanted.count); n += 1) {
      const properties = { mark: `${wanted.name}:${part}:${n}:`, at: new RightDate(now()).toISOString(), text: 'Zoë 茶碗 😀' }
      client.capture({ distinctId: `user-${wanted.name}`, event: 'page read', properties })
      await new Promise((after) => setTimeout(after, 5))
    }
    console.log(JSON.stringify({ part }))
  }
  await input.next()
  await (client.shutdownAsync ?? client.shutdown).call(client)
  process.exit()
}

main()
