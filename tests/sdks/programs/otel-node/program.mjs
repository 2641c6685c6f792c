// An application that logs by OpenTelemetry's SDK for Node, and exports what it logs by OTLP over HTTP.
//
//   node program.mjs --host http://127.0.0.1:8320 --count 1000 --journal sent.jsonl [--mode protobuf-gzip]
//
// Each log record is a line of the journal. The program ends when the SDK has exported everything.
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { SeverityNumber } from '@opentelemetry/api-logs'
import { OTLPLogExporter as JsonExporter } from '@opentelemetry/exporter-logs-otlp-http'
import { OTLPLogExporter as ProtobufExporter } from '@opentelemetry/exporter-logs-otlp-proto'
import { resourceFromAttributes } from '@opentelemetry/resources'
import { BatchLogRecordProcessor, LoggerProvider } from '@opentelemetry/sdk-logs'

const MODES = {
  json: [JsonExporter, 'none'],
  'json-gzip': [JsonExporter, 'gzip'],
  protobuf: [ProtobufExporter, 'none'],
  'protobuf-gzip': [ProtobufExporter, 'gzip'],
}
const { values: options } = parseArgs({
  options: {
    host: { type: 'string' },
    key: { type: 'string' },
    journal: { type: 'string' },
    count: { type: 'string', default: '1000' },
    mode: { type: 'string', default: 'json' },
  },
})

const [Exporter, compression] = MODES[options.mode]
const exporter = new Exporter({ url: `${options.host}/v1/logs`, compression, timeoutMillis: 40_000 })
const provider = new LoggerProvider({
  resource: resourceFromAttributes({ 'service.name': 'shop', 'service.version': '1.2.3' }),
  processors: [new BatchLogRecordProcessor({ exporter, scheduledDelayMillis: 100, exportTimeoutMillis: 40_000 })],
})
const logger = provider.getLogger('shop.orders', '4.5')
const lines = []
for (let n = 0; n < Number(options.count); n++) {
  const person = `person-${n % 7}`
  logger.emit({
    timestamp: Date.now(),
    severityNumber: SeverityNumber.INFO,
    severityText: 'INFO',
    body: { text: `order ${n} 茶`, lines: [1, { sku: 'x' }] },
    attributes: { 'user.id': person, n, big: 2 ** 53 - 1, share: 0.5, paid: n % 2 === 0, tags: ['a', 'ü'] },
    eventName: 'order placed',
  })
  lines.push(JSON.stringify({ event: 'order placed', distinct_id: person, n }) + '\n')
}
writeFileSync(options.journal, lines.join(''))
await provider.forceFlush({ timeoutMillis: 40_000 })
await provider.shutdown()
