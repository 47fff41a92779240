"""unifit's jax backend: one file per part of the contract, each imported by the door when it is first used."""
