// From an array of pointers to the arguments to a call of a kernel.
#pragma once

namespace emulation {

template <typename T>
constexpr char kind_of() {
    if constexpr (std::is_pointer_v<T>)
        return 'p';
    else if constexpr (std::is_same_v<T, float>)
        return 'f';
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 4)
        return 'i';
    else {
        static_assert(std::is_integral_v<T> && sizeof(T) == 8,
                      "parameters are pointers, float, or integers of 32 or 64 bits");
        return 'l';
    }
}
template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A>*>(args[I])...);
}
template <typename... A>
void call(void (*kernel)(A...), void** args) {
    call(kernel, args, std::index_sequence_for<A...>());
}
template <typename... A>
const char* signature(void (*)(A...)) {
    static const char kinds[] = {kind_of<std::remove_const_t<A>>()..., '\0'};
    return kinds;
}

}  // namespace emulation
