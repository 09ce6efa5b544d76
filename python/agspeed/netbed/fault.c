// SPDX-License-Identifier: Apache-2.0
// A tc-bpf program that changes one byte of the TCP or UDP payload, in one of ONE_IN packets, at a random offset.
// The payload is everything behind the transport header: the frame headers, lengths and acknowledgements of the protocol
// on top, and its data. The program does not update the checksum. rail.py compiles it on demand; it keeps no state.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>

// clang 14 does not assemble a section with the same name as its content.
#define SEC(name) __attribute__((section(name), used))

static unsigned (*random_word)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*load_bytes)(const void *, unsigned, void *, unsigned) = (void *)BPF_FUNC_skb_load_bytes;
static long (*store_bytes)(void *, unsigned, const void *, unsigned, unsigned long long) =
    (void *)BPF_FUNC_skb_store_bytes;

// Offset of the bytes behind the TCP or UDP header, or 0 if the packet carries neither.
static __attribute__((always_inline)) unsigned payload_offset(struct __sk_buff *packet) {
  unsigned char first = 0, protocol = 0, data_offset = 0;
  unsigned offset = ETH_HLEN;
  if (load_bytes(packet, offset, &first, 1)) return 0;
  if (first >> 4 == 4) {
    if (load_bytes(packet, offset + 9, &protocol, 1)) return 0;
    offset += (first & 15) * 4;
  } else if (first >> 4 == 6) {
    if (load_bytes(packet, offset + 6, &protocol, 1)) return 0;
    offset += 40;
  }
  if (protocol == IPPROTO_UDP) return offset + 8;
  if (protocol != IPPROTO_TCP || load_bytes(packet, offset + 12, &data_offset, 1)) return 0;
  return offset + (data_offset >> 4) * 4;
}

SEC("tc_corrupt") int corrupt(struct __sk_buff *packet) {
  if (random_word() % ONE_IN) return TC_ACT_UNSPEC;
  unsigned begin = payload_offset(packet);
  if (begin == 0 || packet->len <= begin) return TC_ACT_UNSPEC;
  unsigned offset = begin + random_word() % (packet->len - begin);
  unsigned char byte;
  if (load_bytes(packet, offset, &byte, 1)) return TC_ACT_UNSPEC;
  byte ^= 1 + random_word() % 255;
  store_bytes(packet, offset, &byte, 1, 0);
  return TC_ACT_UNSPEC;
}

SEC("license") char terms[] = "GPL";
