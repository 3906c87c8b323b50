// Drives one of the official clients as a test says: commands come as lines of JSON on standard
// input, and what comes of them goes out as lines of JSON.
//
//   {"id": 1, "call": "listTools", "params": {...}}   any method of the client
//   {"cancel": 1}                                     gives a call up
//   {"answer": 1, "result": {...}}                    answers a question of the server
//
//   {"id": 1, "result": ...}, {"id": 1, "error": {"code", "message", "data"}}, {"id": 1, "progress": {...}}
//   {"asked": 1, "method": ..., "params": ...}, {"heard": method, "params": ...}

import { createInterface } from 'node:readline';

const [flavor, how] = [process.argv[2], JSON.parse(process.argv[3])];
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

const KINDS = ['elicitation/create', 'sampling/createMessage', 'roots/list'];
const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };

const flavors = {
  // The client of the handshake era, which has its requests described by schemas.
  sdk: async (options) => {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const stdio = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const http = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const types = await import('@modelcontextprotocol/sdk/types.js');
    const schemas = [types.ElicitRequestSchema, types.CreateMessageRequestSchema, types.ListRootsRequestSchema];
    const client = new Client({ name: 'driver', version: '1' }, options);
    schemas.forEach((schema, n) => client.setRequestHandler(schema, (request) => ask(KINDS[n], request)));
    client.invoke = (call, params, extra) =>
      call === 'callTool' ? client.callTool(params, undefined, extra) : client[call](params, extra);
    return { client, ...stdio, ...http };
  },
  // The client of both eras.
  client: async (options) => {
    const library = await import('@modelcontextprotocol/client');
    const stdio = await import('@modelcontextprotocol/client/stdio');
    const { SkillsClient } = await import('@modelcontextprotocol/client/ext/skills');
    const client = new library.Client({ name: 'driver', version: '1' }, options);
    KINDS.forEach((kind) => client.setRequestHandler(kind, (request) => ask(kind, request)));
    const skills = new SkillsClient(client);
    client.invoke = (call, params, extra) =>
      call.startsWith('skills.') ? skills[call.slice(7)](params, extra) : client[call](params, extra);
    return { client, ...library, ...stdio };
  },
};

const asked = [];
const ask = (method, { params }) =>
  new Promise((resolve) => {
    say({ asked: asked.push(resolve), method, params });
  });

const running = new Map();
const perform = async ({ id, call, params, timeout = 60_000 }) => {
  const givenUp = new AbortController();
  running.set(id, givenUp);
  const onprogress = (progress) => say({ id, progress });
  try {
    const extra = { signal: givenUp.signal, onprogress, timeout, resetTimeoutOnProgress: true };
    const done = await client.invoke(call, params, extra);
    say({ id, result: call === 'listen' ? {} : (done ?? null) });
  } catch (error) {
    say({ id, error: { code: error.code ?? null, message: error.message, data: error.data ?? null } });
  } finally {
    running.delete(id);
  }
};

const made = await flavors[flavor]({ capabilities: CAPABILITIES, ...how.options });
const { client, StdioClientTransport, StreamableHTTPClientTransport } = made;
client.fallbackNotificationHandler = async ({ method, params }) => say({ heard: method, params });
client.onerror = (error) => say({ fault: error.message });
const transport = how.url
  ? new StreamableHTTPClientTransport(new URL(how.url), { requestInit: { headers: how.headers ?? {} } })
  : new StdioClientTransport({ ...how.command, stderr: 'inherit' });
await client.connect(transport);
say({
  connected: transport.protocolVersion ?? client.getNegotiatedProtocolVersion?.() ?? null,
  server: client.getServerVersion() ?? null,
  capabilities: client.getServerCapabilities() ?? null,
  instructions: client.getInstructions() ?? null,
});

for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (message.cancel) running.get(message.cancel)?.abort('the test gave it up');
  else if (message.answer) asked[message.answer - 1](message.result);
  else void perform(message);
}
await client.close();
process.exit(0);
