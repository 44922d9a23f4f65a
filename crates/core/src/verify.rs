//! Checks Standard Webhooks signatures on raw bytes, with a tolerance for clocks.
