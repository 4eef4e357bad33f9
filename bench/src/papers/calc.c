/* A small compiler: it translates expressions to code of a stack machine and runs it; `test` checks some. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op { PUSH, ADD, SUB, MUL, DIV };
struct insn { enum op op; long value; };
static struct insn code[256];
static int length;
static const char *at;

static void emit(enum op op, long value) { code[length++] = (struct insn){op, value}; }
static void sum(void);

static void factor(void) {
    while (isspace((unsigned char)*at)) at++;
    if (*at == '(') { at++; sum(); at++; return; }
    char *end;
    long value = strtol(at, &end, 10);
    at = end;
    emit(PUSH, value);
}
static void product(void) {
    factor();
    for (;;) {
        while (isspace((unsigned char)*at)) at++;
        if (*at != '*' && *at != '/') return;
        enum op op = *at++ == '*' ? MUL : DIV;
        factor();
        emit(op, 0);
    }
}
static void sum(void) {
    product();
    for (;;) {
        while (isspace((unsigned char)*at)) at++;
        if (*at != '+' && *at != '-') return;
        enum op op = *at++ == '+' ? ADD : SUB;
        product();
        emit(op, 0);
    }
}
static long run(const char *text) {
    long stack[256];
    int top = 0;
    length = 0;
    at = text;
    sum();
    for (int i = 0; i < length; i++) {
        if (code[i].op == PUSH) { stack[top++] = code[i].value; continue; }
        long right = stack[--top], left = stack[--top];
        switch (code[i].op) {
        case ADD: left += right; break;
        case SUB: left -= right; break;
        case MUL: left *= right; break;
        default: left /= right;
        }
        stack[top++] = left;
    }
    return stack[0];
}
int main(void) {
    static const struct { const char *text; long value; } tests[] = {
        {"1 + 2 * 3", 7}, {"(1 + 2) * 3", 9}, {"100 / 7 / 2", 7}, {"2 * (3 + 4) - 5", 9}, {"((8))", 8},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (run(tests[i].text) != tests[i].value) { printf("%s is wrong\n", tests[i].text); return 1; }
    puts("all tests pass");
    return 0;
}
