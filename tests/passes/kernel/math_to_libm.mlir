// RUN: ag-opt --kernel --pass=math-to-libm %s | FileCheck %s
// RUN: not ag-opt --kernel --pass=math-to-libm %S/Inputs/half.mlir 2>&1 | FileCheck %s --check-prefix=HALF

// CHECK-DAG: func.func private @sin(f64) -> f64
// CHECK-DAG: func.func private @powf(f32, f32) -> f32

// One loop over the lanes.
// CHECK-LABEL: func.func @vector
// CHECK: scf.for %[[LANE:.*]] = {{.*}} iter_args(%[[RESULT:.*]] =
// CHECK: %[[X:.*]] = vector.extract %{{.*}}[%[[LANE]]] : f64 from vector<8xf64>
// CHECK: %[[Y:.*]] = func.call @sin(%[[X]])
// CHECK: vector.insert %[[Y]], %[[RESULT]] [%[[LANE]]]
func.func @vector(%v: vector<8xf64>) -> vector<8xf64> {
  %0 = math.sin %v : vector<8xf64>
  return %0 : vector<8xf64>
}

// CHECK-LABEL: func.func @scalar
// CHECK-NEXT: call @powf
// CHECK-NEXT: return
func.func @scalar(%a: f32, %b: f32) -> f32 {
  %0 = math.powf %a, %b : f32
  return %0 : f32
}

// Not transcendental: unchanged.
// CHECK-LABEL: func.func @floor
// CHECK-NEXT: math.floor
func.func @floor(%v: vector<16xf32>) -> vector<16xf32> {
  %0 = math.floor %v : vector<16xf32>
  return %0 : vector<16xf32>
}

// HALF: libm has no version for this element type
