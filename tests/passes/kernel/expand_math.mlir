// RUN: ag-opt --kernel --pass=expand-math %s | FileCheck %s

// A vector and a scalar get the same formula.
// CHECK-LABEL: func.func @exp
// CHECK-NOT: math.exp
// CHECK-COUNT-2: math.fma {{.*}} : vector<16xf32>
// CHECK: math.fma {{.*}} : f32
// CHECK-NOT: math.exp
func.func @exp(%v: vector<16xf32>, %s: f32) -> (vector<16xf32>, f32) {
  %0 = math.exp %v : vector<16xf32>
  %1 = math.exp %s : f32
  return %0, %1 : vector<16xf32>, f32
}

// Widened to f64, rounded once.
// CHECK-LABEL: func.func @log2
// CHECK: arith.extf {{.*}} : vector<16xf32> to vector<16xf64>
// CHECK: arith.truncf {{.*}} : vector<16xf64> to vector<16xf32>
// CHECK-NOT: math.log2
func.func @log2(%v: vector<16xf32>) -> vector<16xf32> {
  %0 = math.log2 %v : vector<16xf32>
  return %0 : vector<16xf32>
}

// Large angles keep the operation, in a branch, for libm.
// CHECK-LABEL: func.func @sin
// CHECK: %[[ANY:.*]] = vector.reduction <or>
// CHECK: scf.if %[[ANY]]
// CHECK: math.sin
// CHECK: else
func.func @sin(%v: vector<16xf32>) -> vector<16xf32> {
  %0 = math.sin %v : vector<16xf32>
  return %0 : vector<16xf32>
}

// No formula for f64: unchanged.
// CHECK-LABEL: func.func @sin64
// CHECK-NEXT: math.sin
// CHECK-NEXT: return
func.func @sin64(%v: vector<8xf64>) -> vector<8xf64> {
  %0 = math.sin %v : vector<8xf64>
  return %0 : vector<8xf64>
}

// An instruction of the machine: unchanged.
// CHECK-LABEL: func.func @sqrt
// CHECK-NEXT: math.sqrt
// CHECK-NEXT: return
func.func @sqrt(%v: vector<16xf32>) -> vector<16xf32> {
  %0 = math.sqrt %v : vector<16xf32>
  return %0 : vector<16xf32>
}
