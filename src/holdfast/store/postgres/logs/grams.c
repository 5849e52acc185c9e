/* Marks the grams of a piece of a log, as core/logs/grams.py does: a bit for each three bytes in a
   row. Without a C library, so it runs beside any. */

void mark(const unsigned char *data, unsigned long size, unsigned char *bits);

void mark(const unsigned char *data, unsigned long size, unsigned char *bits) {
    if (size < 3) return;
    unsigned int gram = (unsigned int)data[0] << 8 | (unsigned int)data[1] << 16;
    for (unsigned long i = 2; i < size; i++) {
        gram = gram >> 8 | (unsigned int)data[i] << 16;
        unsigned int bit = (unsigned int)((unsigned long long)gram * 2654435761ull >> 16) & 0x7fff;
        bits[bit >> 3] |= (unsigned char)(1u << (bit & 7));
    }
}
