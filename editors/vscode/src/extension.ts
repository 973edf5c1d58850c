// Starts the language server `gpuemu-flow lsp` and connects VS Code to it; all else is the server's.

import { commands, ExtensionContext, window, workspace } from "vscode";
import { LanguageClient, TransportKind } from "vscode-languageclient/node";

const ID = "gpuemu-flow";
let client: LanguageClient | undefined;

async function start(): Promise<void> {
  const [command, ...args] = workspace
    .getConfiguration(ID)
    .get<string[]>("command", [ID, "lsp"]);
  if (command === undefined) {
    return;
  }
  client = new LanguageClient(
    ID,
    ID,
    { command, args, transport: TransportKind.stdio },
    {
      documentSelector: [
        { language: "gpuemu-toml" },
        { scheme: "file", pattern: "**/gpuemu.toml" },
      ],
    },
  );
  try {
    await client.start();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    void window.showErrorMessage(
      `${ID}: cannot start ${command}: ${reason}. See the setting ${ID}.command.`,
    );
  }
}

async function stop(): Promise<void> {
  const running = client;
  client = undefined;
  if (running?.needsStop()) {
    await running.stop();
  }
}

export async function activate(context: ExtensionContext): Promise<void> {
  context.subscriptions.push(
    commands.registerCommand(`${ID}.restart`, async () => {
      await stop();
      await start();
    }),
  );
  await start();
}

export function deactivate(): Promise<void> {
  return stop();
}
