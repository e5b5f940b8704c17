// Run by node: what a JavaScript program does with the API, over grpc-js with its 64 KB windows and 16 KB frames.
// node grpc_js_client.js <address> <folder of api.proto>; prints one JSON object.
'use strict';
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [address, protoFolder] = process.argv.slice(2);
const definition = loader.loadSync(path.join(protoFolder, 'api.proto'), {keepCase: true, longs: Number, defaults: true});
const {API} = grpc.loadPackageDefinition(definition).proto;
const client = new API(address, grpc.credentials.createInsecure());
const results = {};

const call = (method, request, seconds = 60) => new Promise((resolve, reject) => {
  const deadline = seconds === null ? undefined : new Date(Date.now() + seconds * 1000);
  client[method](request, new grpc.Metadata(), {deadline}, (error, answer) => (error ? reject(error) : resolve(answer)));
});
const codeOf = (promise) => promise.then(() => 0, (error) => error.code);

// Messages of a subscription until `count` real ones came; the first message is the handshake.
const read = (request, count) => new Promise((resolve, reject) => {
  const found = [];
  const stream = client.Subscribe(request);
  let handshakes = 0;
  stream.on('data', (message) => {
    if (handshakes === 0) { handshakes = 1; return; }
    found.push(message);
    if (found.length === count) { stream.cancel(); resolve(found); }
  });
  stream.on('error', (error) => { if (found.length < count) reject(error); });
});

const publishMany = (stream, count, bytes) => new Promise((resolve, reject) => {
  const session = client.PublishAsync();
  const acks = [];
  session.on('data', (answer) => { acks.push(answer); });
  session.on('end', () => resolve(acks));
  session.on('error', reject);
  for (let number = 0; number < count; number += 1) {
    const value = Buffer.alloc(bytes, number % 256);
    session.write({stream, value, correlationId: String(number), ackPolicy: 'ALL'});
  }
  session.end();
});

async function main() {
  await call('CreateStream', {name: 'js', subject: 'js.subject', partitions: 2});
  results.again = await codeOf(call('CreateStream', {name: 'js', subject: 'js.subject'}));
  const {ack} = await call('Publish', {stream: 'js', value: Buffer.from('one'), headers: {h: Buffer.from('1')}});
  results.ack = {stream: ack.stream, offset: ack.offset, msgSubject: ack.msgSubject};
  results.noDeadline = (await call('Publish', {stream: 'js', value: Buffer.from('two')}, null)).ack;
  const small = await publishMany('js', 3000, 100);
  results.small = small.filter((answer) => !answer.asyncError && answer.ack.correlationId === answer.correlationId).length;
  const first = await read({stream: 'js', startPosition: 'EARLIEST'}, 3002);
  results.read = first.length;
  results.inOrder = first.every((message, index) => message.offset === index);
  results.header = first[0].headers.h.toString();
  await call('CreateStream', {name: 'js-large', subject: 'js.large'});
  const large = await publishMany('js-large', 60, 300000);
  results.large = large.length;
  const back = await read({stream: 'js-large', startPosition: 'EARLIEST'}, 60);
  results.largeWhole = back.every((message, index) => message.value.length === 300000 && message.value[7] === index % 256);
  results.unknown = await new Promise((resolve) => {
    client.Subscribe({stream: 'never-was'}).on('data', () => {}).on('error', (error) => resolve([error.code, error.details]));
  });
  const deleted = new Promise((resolve) => {
    const stream = client.Subscribe({stream: 'js', startPosition: 'NEW_ONLY'});
    stream.on('data', () => call('DeleteStream', {name: 'js'}));
    stream.on('error', (error) => resolve(error.code));
  });
  results.deleted = await deleted;
  const metadata = await call('FetchMetadata', {});
  results.brokers = metadata.brokers.map((broker) => `${broker.host}:${broker.port}`);
  results.deadline = await codeOf(call('PublishToSubject', {subject: 'nobody.listens', value: Buffer.from('x')}, 0.3));
  client.close();
  console.log(JSON.stringify(results));
}

main().catch((error) => { console.error(error); process.exit(1); });
