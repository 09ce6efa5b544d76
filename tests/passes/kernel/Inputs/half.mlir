func.func @half(%x: f16) -> f16 {
  %0 = math.sin %x : f16
  return %0 : f16
}
