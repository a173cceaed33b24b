#!/usr/bin/env bash
# Stands in for curl on a host: the attribute tpu-env of a slice's metadata, as jax reads it too.
[[ "${*: -1}" == */instance/attributes/tpu-env ]] || exit 22
printf "ZONE: 'z'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '%s'\n" "$FAKE_SLICE"
