// AMX tiles for a processor that has none: their instructions trap, and are executed here. So tests run
// the kernels as they are compiled and shipped. For tests on Linux and x86-64 with AVX-512. In gdb:
// handle SIGILL nostop noprint pass
// Source: Intel's Software Developer's Manual, volume 2, at each instruction's name. What a processor would
// refuse (a configuration, or tiles whose shapes do not fit) stays an illegal instruction.
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int NUM_TILES = 8, MAX_ROWS = 16, MAX_ROW_BYTES = 64;

// Rows and columns that are not a tile's own are zero, as after every instruction that writes one.
struct alignas(64) Tile {
    uint8_t data[MAX_ROWS][MAX_ROW_BYTES];
    int rows, row_bytes;

    __m512i row(int m) const { return _mm512_load_si512(data[m]); }
    int32_t word(int m, int k) const {
        int32_t word;
        memcpy(&word, data[m] + 4 * k, 4);
        return word;
    }
    __mmask64 bytes() const { return row_bytes ? ~__mmask64(0) >> (64 - row_bytes) : 0; }
    __mmask16 columns() const { return __mmask16((1u << row_bytes / 4) - 1); }
    void zero() { memset(data, 0, sizeof data); }
};

struct Tiles {
    bool is_configured;
    Tile tile[NUM_TILES];
};
thread_local Tiles tiles;

// VEX fields, and the operand in memory if there is one.
struct Instruction {
    enum Prefix { NONE, P66, PF3, PF2 };
    int opcode, prefix, reg, rm, third;
    bool is_memory;
    uint8_t* address;
    int64_t stride;  // the index register, scaled; 0 without one
    int length;
};

int64_t register_of(const greg_t* registers, int number) {
    constexpr int places[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[places[number]];
}

// The operand in memory; gives the bytes that it takes after ModRM.
int decode_memory(const greg_t* registers, const uint8_t* code, int mod, int x, int b, Instruction& to) {
    const uint8_t* at = code;
    int64_t address = 0;
    int base = to.rm;
    const bool is_relative = mod == 0 && base == 5;
    bool has_base = !is_relative;
    if (base == 4) {
        const uint8_t sib = *at++;
        const int index = (sib >> 3 & 7) | x << 3;
        base = sib & 7;
        has_base = mod != 0 || base != 5;
        if (index != 4) to.stride = register_of(registers, index) << (sib >> 6);
    }
    if (has_base) address = register_of(registers, base | b << 3);
    if (mod == 1) {
        address += int8_t(*at++);
    } else if (mod == 2 || !has_base) {
        int32_t displacement;
        memcpy(&displacement, at, 4);
        at += 4;
        address += displacement;
    }
    if (is_relative) address += reinterpret_cast<int64_t>(at);
    to.address = reinterpret_cast<uint8_t*>(address);
    return static_cast<int>(at - code);
}

// Whether it may be an instruction on tiles: VEX of three bytes, map 0F38, W0, 128.
bool decode(const greg_t* registers, Instruction& to) {
    const uint8_t* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (code[0] != 0xc4 || (code[1] & 0x9f) != 0x82 || (code[2] & 0x84) != 0) return false;
    const int modrm = code[4], mod = modrm >> 6;
    to = {};
    to.opcode = code[3];
    to.prefix = code[2] & 3;
    to.third = ~(code[2] >> 3) & 15;
    to.reg = modrm >> 3 & 7;
    to.rm = modrm & 7;
    to.is_memory = mod != 3;
    to.length = 5;
    if (to.is_memory)
        to.length += decode_memory(registers, code + 5, mod, ~(code[1] >> 6) & 1, ~(code[1] >> 5) & 1, to);
    return to.third < NUM_TILES;
}

// LDTILECFG. A configuration of zeros, and a tile without rows, are none of the kernels'.
bool configure(const uint8_t* config) {
    if (config[0] != 1 || config[1] != 0) return false;
    for (int i = 2; i < 16; i++)
        if (config[i]) return false;
    for (int i = 32; i < 64; i++)
        if (config[i] && (i < 48 || i >= 48 + NUM_TILES)) return false;
    for (int t = 0; t < NUM_TILES; t++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, config + 16 + 2 * t, 2);
        const int rows = config[48 + t];
        if (!rows || rows > MAX_ROWS || !row_bytes || row_bytes > MAX_ROW_BYTES || row_bytes % 4) return false;
        tiles.tile[t].rows = rows;
        tiles.tile[t].row_bytes = row_bytes;
        tiles.tile[t].zero();
    }
    tiles.is_configured = true;
    return true;
}

void load(Tile& to, const Instruction& from) {
    to.zero();
    for (int m = 0; m < to.rows; m++)
        _mm512_store_si512(to.data[m], _mm512_maskz_loadu_epi8(to.bytes(), from.address + m * from.stride));
}

void store(const Tile& from, const Instruction& to) {
    for (int m = 0; m < from.rows; m++)
        _mm512_mask_storeu_epi8(to.address + m * to.stride, from.bytes(), from.row(m));
}

// TDPBF16PS: even products in order and odd ones in order, each from zero, then both sums to the tile.
void add_halves(Tile& to, const Tile& left, const Tile& right) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
    const auto even_of = [](__m512i pairs) { return (__m512)_mm512_slli_epi32(pairs, 16); };
    const auto odd_of = [&](__m512i pairs) { return (__m512)_mm512_and_si512(pairs, upper); };
    for (int m = 0; m < to.rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int k = 0; k < right.rows; k++) {
            const __m512i pair = _mm512_set1_epi32(left.word(m, k));
            even = _mm512_fmadd_ps(even_of(pair), even_of(right.row(k)), even);
            odd = _mm512_fmadd_ps(odd_of(pair), odd_of(right.row(k)), odd);
        }
        const __m512 before = (__m512)to.row(m);
        _mm512_store_si512(to.data[m], (__m512i)_mm512_maskz_add_ps(to.columns(), before,
                                                                   _mm512_add_ps(even, odd)));
    }
}

// TDPBSSD: signed bytes by four.
void add_bytes(Tile& to, const Tile& left, const Tile& right) {
    const auto byte_of = [](__m512i words, int i) {
        return _mm512_srai_epi32(_mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * i)), 24);
    };
    for (int m = 0; m < to.rows; m++) {
        __m512i sum = to.row(m);
        for (int k = 0; k < right.rows; k++) {
            const __m512i four = _mm512_set1_epi32(left.word(m, k));
            for (int i = 0; i < 4; i++)
                sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(byte_of(four, i), byte_of(right.row(k), i)));
        }
        _mm512_store_si512(to.data[m], sum);
    }
}

bool multiply(const Instruction& i) {
    Tile &to = tiles.tile[i.reg], &left = tiles.tile[i.rm], &right = tiles.tile[i.third];
    const bool are_different = i.reg != i.rm && i.reg != i.third && i.rm != i.third;
    const bool fit = to.rows == left.rows && to.row_bytes == right.row_bytes &&
                     left.row_bytes == 4 * right.rows;
    if (!are_different || !fit) return false;
    if (i.opcode == 0x5c && i.prefix == Instruction::PF3) return add_halves(to, left, right), true;
    if (i.opcode == 0x5e && i.prefix == Instruction::PF2) return add_bytes(to, left, right), true;
    return false;
}

// Executes the next instruction, if it is one on tiles that the kernels use.
bool step(greg_t* registers) {
    Instruction i;
    if (!decode(registers, i)) return false;
    if (i.opcode == 0x49 && i.is_memory && i.prefix == Instruction::NONE) {
        if (i.reg || !configure(i.address)) return false;
    } else if (!tiles.is_configured) {
        return false;
    } else if (i.opcode == 0x49 && !i.is_memory && i.prefix == Instruction::NONE) {  // TILERELEASE
        if (i.reg || i.rm) return false;
        tiles.is_configured = false;
    } else if (i.opcode == 0x49 && !i.is_memory && i.prefix == Instruction::PF2) {
        tiles.tile[i.reg].zero();
    } else if (i.opcode == 0x4b && i.is_memory && i.rm == 4) {
        if (i.prefix == Instruction::PF3)
            store(tiles.tile[i.reg], i);
        else if (i.prefix != Instruction::NONE)
            load(tiles.tile[i.reg], i);  // TILELOADD and TILELOADDT1
        else
            return false;
    } else if (i.is_memory || !multiply(i)) {
        return false;
    }
    registers[REG_RIP] += i.length;
    return true;
}

struct sigaction handler_before;

void on_illegal_instruction(int, siginfo_t*, void* context) {
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    // The interrupted code gets its own back. Tiles flush subnormals and round to nearest, whatever it says.
    _mm_setcsr(0x9fc0);
    bool is_done = false;
    while (step(registers)) is_done = true;  // a trap for several that follow each other
    if (is_done) return;
    constexpr char message[] = "emulated tiles: an illegal instruction, or tiles that do not fit it\n";
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0) return;
    sigaction(SIGILL, &handler_before, nullptr);  // it comes again, and has its usual end
}

}  // namespace

// From now on the process has tiles. 0: the processor lacks other instructions that units for AMX may use.
extern "C" int emulate_tiles() {
    static const bool is_done = [] {
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni") ||
            !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vbmi2"))
            return false;
        struct sigaction handler {};
        handler.sa_sigaction = on_illegal_instruction;
        handler.sa_flags = SA_SIGINFO;
        return sigaction(SIGILL, &handler, &handler_before) == 0;
    }();
    return is_done;
}
