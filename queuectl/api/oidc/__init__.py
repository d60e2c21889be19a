"""Sign-in through an OpenID Connect issuer: ID tokens as bearer tokens, and logins in the browser."""
