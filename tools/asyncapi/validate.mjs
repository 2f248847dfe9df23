// Reads an AsyncAPI document from standard input with AsyncAPI's own parser, and prints what it finds
// wrong as one JSON list of {severity, code, path, message}; severity 0 is an error, 1 a warning.
import { readFileSync } from "node:fs";

import { Parser } from "@asyncapi/parser";

const { diagnostics } = await new Parser().parse(readFileSync(0, "utf-8"));
console.log(
  JSON.stringify(
    diagnostics.map(({ severity, code, path, message }) => ({
      severity,
      code,
      path: path.join("."),
      message,
    })),
  ),
);
