// RUN: ag-opt --kernel --pass=lower-to-llvm %s | FileCheck %s
// RUN: not ag-opt --kernel --pass=lower-to-llvm %S/Inputs/erf.mlir 2>&1 | FileCheck %s --check-prefix=ERF

// CHECK-LABEL: llvm.func @loop(%{{.*}}: !llvm.ptr, %{{.*}}: i64)
// CHECK: llvm.cond_br
// CHECK: llvm.intr.fma
// CHECK: llvm.return
// CHECK-NOT: scf.
// CHECK-NOT: unrealized_conversion_cast
func.func @loop(%p: !llvm.ptr, %n: i64) {
  %zero = arith.constant 0 : i64
  %step = arith.constant 16 : i64
  scf.for %i = %zero to %n step %step : i64 {
    %at = llvm.getelementptr %p[%i] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %x = llvm.load %at {alignment = 4 : i64} : !llvm.ptr -> vector<16xf32>
    %y = math.fma %x, %x, %x : vector<16xf32>
    llvm.store %y, %at {alignment = 4 : i64} : vector<16xf32>, !llvm.ptr
  }
  return
}

// ERF: pass lower-to-llvm failed {{.*}}math.erf
