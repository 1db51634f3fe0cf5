/* spelling.c: the canonical spelling of JSON for programs that read other formats.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvc.h"

#include "alloc.h"
#include "canonical.h"
#include "layout.h"
#include "status.h"

#include "ban.h"

enum kvc_status kvc_json_canonical(const char *text, size_t text_bytes, uint64_t max_values,
                                   const struct kvc_allocator *allocator, char **ret_text,
                                   size_t *ret_bytes, struct kvc_error *error)
{
    const uint64_t most_values =
        KVCI_BASE_JSON_VALUES + (uint64_t)KVCI_JSON_VALUES_PER_TENSOR * KVCI_MAX_TENSOR_COUNT;
    const char *problem = NULL;
    size_t problem_offset = 0;
    uint8_t *out = NULL;
    size_t out_bytes = 0;
    if (text == NULL || ret_text == NULL || ret_bytes == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET,
                         "text, ret_text and ret_bytes must not be NULL");
    }
    if (kvci_alloc_check(allocator) != KVC_OK) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "an allocator needs both of its functions, allocate and release");
    }
    enum kvci_canonical_result result =
        kvci_canonical_write(text, text_bytes, max_values != 0 ? max_values : most_values,
                             allocator, &out, &out_bytes, &problem, &problem_offset);
    if (result == KVCI_CANONICAL_NO_MEMORY) {
        return kvci_fail_memory(error, text_bytes);
    }
    if (result == KVCI_CANONICAL_REFUSED) {
        return kvci_fail(error, KVC_E_JSON, problem_offset,
                         "the text is not JSON that has a canonical spelling: %s at byte %zu",
                         problem, problem_offset);
    }
    *ret_text = (char *)out;
    *ret_bytes = out_bytes;
    return KVC_OK;
}
