// A certified OpenID Connect provider (npm oidc-provider) on a free port of this machine, for tests.
// Argument: JSON with clients, accounts (claims by login) and idTokenSeconds. Prints {"issuer": URL}; ends with its stdin.

import { createServer } from "node:http";

import { Provider } from "oidc-provider";

const given = JSON.parse(process.argv[2]);
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: given.clients,
    claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["preferred_username"], groups: ["groups"] },
    conformIdTokenClaims: false, // claims of scopes are in the ID token, as kube-apiserver needs them
    cookies: { keys: ["only for tests"] },
    features: { devInteractions: { enabled: true } },
    findAccount: (_, login) => ({ accountId: login, claims: () => ({ sub: login, ...given.accounts[login] }) }),
    jwks: { keys: [given.key] },
    loadExistingGrant: async (ctx) => {
      const grant = new ctx.oidc.provider.Grant({
        clientId: ctx.oidc.client.clientId,
        accountId: ctx.oidc.session.accountId,
      });
      grant.addOIDCScope("openid profile email groups");
      await grant.save();
      return grant;
    },
    pkce: { required: () => true },
    ttl: { IdToken: given.idTokenSeconds },
  });
  server.on("request", provider.callback());
  process.stdout.write(`${JSON.stringify({ issuer })}\n`);
});
process.stdin.on("end", () => process.exit());
process.stdin.resume();
