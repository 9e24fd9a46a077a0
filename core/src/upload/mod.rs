//! Stage 4: send.
