// Official clients of npm (openai, the AI SDK) against a server of the demo model: `node clients.mjs URL`.
import assert from 'node:assert';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

const url = process.argv[2];
const model = 'demo';
const messages = [{ role: 'user', content: 'In the beginning' }];
const place = z.object({ name: z.enum(['heaven', 'earth']), day: z.number().int().min(1).max(7) });
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none' });
const provider = createOpenAICompatible({
  name: 'brigade', baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});

const calls = [
  ['openai (npm)', 'chat', async () => {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 12 });
    assert(answer.choices[0].message.content);
  }],
  ['openai (npm)', 'chat, streamed', async () => {
    let text = '';
    for await (const event of await client.chat.completions.create({ model, messages, max_tokens: 12, stream: true })) {
      text += event.choices[0]?.delta?.content ?? '';
    }
    assert(text);
  }],
  ['openai (npm)', 'responses, streamed', async () => {
    const kinds = [];
    for await (const event of await client.responses.create({ model, input: messages, max_output_tokens: 12, stream: true })) {
      kinds.push(event.type);
    }
    assert.equal(kinds[0], 'response.created');
    assert(kinds.includes('response.output_text.delta'));
  }],
  ['openai (npm)', 'embeddings', async () => {
    const answer = await client.embeddings.create({ model, input: 'heaven' });
    const length = answer.data[0].embedding.reduce((sum, x) => sum + x * x, 0);
    assert(Math.abs(length - 1) < 1e-4);
  }],
  ['AI SDK', 'generateText', async () => {
    const { text } = await generateText({ model: provider(model), messages, maxOutputTokens: 12 });
    assert(text);
  }],
  ['AI SDK', 'streamText', async () => {
    let text = '';
    for await (const piece of streamText({ model: provider(model), messages, maxOutputTokens: 12 }).textStream) text += piece;
    assert(text);
  }],
  ['AI SDK', 'generateObject', async () => {
    const { object } = await generateObject({ model: provider(model), messages, schema: place, maxOutputTokens: 200 });
    assert(place.safeParse(object).success);
  }],
  ['AI SDK', 'a required tool', async () => {
    const { toolCalls } = await generateText({
      model: provider(model), messages, maxOutputTokens: 200, toolChoice: 'required',
      tools: { place: tool({ description: 'Names a place.', inputSchema: place }) },
    });
    assert(place.safeParse(toolCalls[0].input).success);
  }],
];

let failed = 0;
for (const [name, what, check] of calls) {
  let result = 'pass';
  try {
    await check();
  } catch (error) {
    failed += 1;
    result = 'FAIL';
    console.error(error);
  }
  console.log(`| ${name.padEnd(14)} | ${what.padEnd(46)} | ${result} |`);
}
console.log(`${calls.length - failed} of ${calls.length} calls pass`);
process.exit(failed > 0 ? 1 : 0);
