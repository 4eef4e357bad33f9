//! [`WorkerDecoder`]: decodes in a worker.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tarpon_layer::Codec;
use tarpon_layer::chunks::CheckpointEntry;
use tarpon_layer::decode::{DecodeError, DecodedLayer, Decoder, InProcess, LayerInput};
use tarpon_oci::{Compression, limits};

use crate::chunk_call::Call;
use crate::layer_call;
use crate::process::Process;
use crate::slot::{Slot, Tries};

/// A worker that has not returned a chunk after this has failed. The largest takes a tenth of a second on an idle machine.
const DECODE: Duration = Duration::from_secs(10);

/// Decodes in the worker of a slot.
#[derive(Debug)]
pub(crate) struct WorkerDecoder {
    slot: Arc<Slot>,
}

impl WorkerDecoder {
    pub(crate) fn new(slot: Arc<Slot>) -> Self {
        Self { slot }
    }

    fn call(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        // Before anything is allocated: the numbers are from a table that a worker may have written.
        let end = call.skip.checked_add(call.size).ok_or(DecodeError::TooLarge)?;
        if call.size > limits::CHUNK_BYTES || end > limits::MEMBER_BYTES {
            return Err(DecodeError::TooLarge);
        }
        let mut tries = Tries::default();
        loop {
            let (process, error) = match self.slot.process() {
                Ok(process) => match attempt(&process, call, out) {
                    Ok(outcome) => return outcome,
                    Err(error) => (Some(process), error),
                },
                Err(error) => (None, error),
            };
            let pause = tries.failed(process.as_deref(), &error);
            std::thread::sleep(pause.map_err(|problem| DecodeError::Process { problem })?);
        }
    }
}

fn attempt(process: &Process, call: &Call<'_>, out: &mut Vec<u8>) -> io::Result<Result<(), DecodeError>> {
    let mut channel: UnixStream = process.chunk_channel()?;
    call.send(&mut channel)?;
    let outcome = call.receive(&mut channel, Instant::now() + DECODE, out)?;
    process.keep_chunk_channel(channel);
    Ok(outcome)
}

impl Decoder for WorkerDecoder {
    fn chunk(&self, codec: Codec, encoded: &[u8], skip: u64, size: u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        match codec {
            Codec::Gzip | Codec::Zstd => {
                self.call(&Call { codec, used_bits: 0, window: &[], encoded, skip, size }, out)
            }
            // A copy, or an error.
            _ => InProcess.chunk(codec, encoded, skip, size, out),
        }
    }

    fn span(
        &self,
        checkpoint: &CheckpointEntry<'_>,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let CheckpointEntry { used_bits, window } = *checkpoint;
        self.call(&Call { codec: Codec::Deflate, used_bits, window, encoded, skip, size }, out)
    }

    fn layer(&self, compression: Compression, input: LayerInput) -> io::Result<DecodedLayer> {
        match compression {
            Compression::None => InProcess.layer(compression, input),
            compression => layer_call::begin(&*self.slot.process()?, compression, input),
        }
    }
}
