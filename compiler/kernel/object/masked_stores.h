// SPDX-License-Identifier: Apache-2.0
// Masked stores for x86-64 processors without AVX-512. Their instruction for masked stores (vmaskmov) is slow
// on some of them. Example: rows of 24 channels end with a masked store of 16 lanes, of which 8 are stored.
#pragma once

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace agspeed::compiler {

/// Splits masked stores into parts of one register, if the target has no registers with masks. A part without a lane is
/// skipped, and a whole part is stored without a mask. The same bytes are stored for any mask. Stores with constant
/// masks stay, because LLVM splits them itself.
void splitMaskedStores(llvm::Module& module, const llvm::TargetMachine& machine);

}  // namespace agspeed::compiler
